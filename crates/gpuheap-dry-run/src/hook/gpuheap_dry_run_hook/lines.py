"""Finds lines of the program on a stack, and the variables of a frame."""

import inspect
import os
import sys

LIBRARY = os.path.dirname(os.__file__) + os.sep
# Folder of the hook.
HOOK = os.path.dirname(__file__) + os.sep
# Part of the paths of installed packages.
PACKAGES = f"{os.sep}site-packages{os.sep}"


def is_package(file):
    """Returns True for a file of an installed package."""
    return PACKAGES in file


def own_frames(frame):
    """Yields the frames of the program, innermost first, without the hook, PyTorch and Python."""
    while frame is not None:
        name = frame.f_code.co_filename
        if not (name.startswith(("<", LIBRARY, HOOK)) or is_package(name)):
            yield frame
        frame = frame.f_back


def innermost(frame):
    """Returns the innermost frame that is not the hook's; None on a thread of native code."""
    while frame is not None and frame.f_code.co_filename.startswith(HOOK):
        frame = frame.f_back
    return frame


def reader(frame):
    """Returns the innermost frame that is not in the hook, PyTorch or Python; None if all are."""
    while frame is not None:
        name = frame.f_code.co_filename
        if is_package(name):
            if f"{PACKAGES}torch{os.sep}" not in name:
                return frame
        elif not name.startswith(("<", LIBRARY, HOOK)):
            return frame
        frame = frame.f_back
    return None


def variables(frame):
    """Returns the local variables of `frame`.

    Before Python 3.13, a function's frame keeps the dictionary that `f_locals` returns. The
    dictionary would keep the tensors in it alive. So this function empties the dictionary, unless
    the program refers to it too.
    """
    kept = frame.f_locals
    found = dict(kept)
    is_copy = frame.f_code.co_flags & inspect.CO_OPTIMIZED and sys.version_info < (3, 13)
    # The frame, this function and the call each hold a reference.
    if is_copy and sys.getrefcount(kept) <= 3:
        kept.clear()
    return found


def lines_of(frame):
    found = []
    for own in own_frames(frame):
        found.append(place(own))
        if len(found) == 3:
            break
    return found


def place(frame):
    return line_of(frame.f_code, frame.f_lineno)


def line_of(code, line):
    return f"{code.co_filename}:{line} in {code.co_name}"


def line_at(at):
    """Returns a source line's file, number and function as text.

    `at` is the pair of the line's code object and line number, or None for native code.
    """
    return "a thread of PyTorch" if at is None else line_of(*at)
