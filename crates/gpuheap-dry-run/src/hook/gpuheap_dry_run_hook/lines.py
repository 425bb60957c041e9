"""Lines of the program on a stack."""

import os

LIBRARY = os.path.dirname(os.__file__) + os.sep
# Folder of the hook.
HOOK = os.path.dirname(__file__) + os.sep


def own_frames(frame):
    """Yields the frames of the program, innermost first, without the hook, PyTorch and Python."""
    while frame is not None:
        name = frame.f_code.co_filename
        is_library = (
            name.startswith(("<", LIBRARY, HOOK)) or f"{os.sep}site-packages{os.sep}" in name
        )
        if not is_library:
            yield frame
        frame = frame.f_back


def innermost(frame):
    """Returns the innermost frame that is not the hook's; None on a thread of native code."""
    while frame is not None and frame.f_code.co_filename.startswith(HOOK):
        frame = frame.f_back
    return frame


def reader(frame):
    """Returns the innermost frame outside of the hook, PyTorch and Python; None without one."""
    while frame is not None:
        name = frame.f_code.co_filename
        is_package = f"{os.sep}site-packages{os.sep}" in name
        is_torch = f"{os.sep}site-packages{os.sep}torch{os.sep}" in name
        if is_package and not is_torch:
            return frame
        if not is_package and not name.startswith(("<", LIBRARY, HOOK)):
            return frame
        frame = frame.f_back
    return None


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
