"""Frames of threads, read without leaving a trace of the reading."""

from __future__ import annotations

import gc
import inspect
import sys
import threading
import types
from pathlib import Path

_PACKAGE = str(Path(__file__).parent)


def running_frames() -> list[tuple[int, types.FrameType]]:
    """Frames that run now, the innermost of each thread first, with the thread's number. Frames of this
    package are left out."""
    found = []
    innermost = sys._current_frames()
    while innermost:
        ident, running = innermost.popitem()
        # At the end this is no frame: one that held its own would keep its locals when it ends.
        frame: types.FrameType | None = running
        del running
        while frame is not None:
            if not frame.f_code.co_filename.startswith(_PACKAGE):
                found.append((ident, frame))
            frame = frame.f_back
    return found


def local_names(frame: types.FrameType) -> dict[str, int]:
    """The locals of a frame: the number `id` of each by its name."""
    values = frame.f_locals
    names = {name: id(value) for name, value in values.items()}
    # Until Python 3.13 a function's frame keeps the dictionary that it made for us, and with it all that
    # its locals are now. It is emptied, unless `locals()` or a debugger has it too.
    is_copy = sys.version_info < (3, 13) and frame.f_code.co_flags & inspect.CO_OPTIMIZED
    if is_copy and sys.gettrace() is None and sys.getrefcount(values) <= 3:
        values.clear()
    return names


def place(frame: types.FrameType, line: int | None = None) -> str:
    """`f at file:line`."""
    code = frame.f_code
    return f"{code.co_qualname}() at {code.co_filename}:{line or frame.f_lineno}"


def thread_name(ident: int) -> str:
    for thread in threading.enumerate():
        if thread.ident == ident:
            return thread.name
    return str(ident)


def dead_thread(frame: types.FrameType) -> threading.Thread | None:
    """The thread that ran a frame, if it ended."""
    outermost = frame
    while outermost.f_back is not None:
        outermost = outermost.f_back
    if outermost.f_code is not threading.Thread._bootstrap.__code__:  # type: ignore[attr-defined]
        return None
    thread = outermost.f_locals.get("self")
    local_names(outermost)
    return thread if isinstance(thread, threading.Thread) and not thread.is_alive() else None


def is_suspended(frame: types.FrameType) -> bool:
    """Whether a generator or a coroutine will go on with the frame."""
    flags = frame.f_code.co_flags
    if not flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        return False
    kinds = {
        types.GeneratorType: "gi_frame",
        types.CoroutineType: "cr_frame",
        types.AsyncGeneratorType: "ag_frame",
    }
    return any(
        getattr(found, kinds[type(found)]) is frame for found in gc.get_objects() if type(found) in kinds
    )
