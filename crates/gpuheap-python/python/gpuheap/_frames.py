"""Reads the frames of threads without keeping their locals alive."""

from __future__ import annotations

import gc
import inspect
import sys
import threading
import types
import weakref
from pathlib import Path
from typing import Any

from gpuheap import _plain

_PACKAGE = str(Path(__file__).parent)


def running_frames() -> list[tuple[int, types.FrameType]]:
    """Returns the frames that run now, each with its thread's number. The innermost frame of each
    thread comes first. Leaves out frames of this package."""
    found = []
    innermost = sys._current_frames()
    while innermost:
        ident, running = innermost.popitem()
        # A frame that holds itself would keep its locals after the call, so delete `running`.
        frame: types.FrameType | None = running
        del running
        while frame is not None:
            if not frame.f_code.co_filename.startswith(_PACKAGE):
                found.append((ident, frame))
            frame = frame.f_back
    return found


def local_names(frame: types.FrameType) -> dict[str, int]:
    """Returns the `id` of each local of a frame, keyed by name."""
    return {name: id(value) for name, value in _locals(frame).items()}


def local_values(frame: types.FrameType) -> list[Any]:
    """Returns the values of a frame's locals."""
    return list(_locals(frame).values())


def _locals(frame: types.FrameType) -> dict[str, Any]:
    """Copies a frame's locals, because another thread may change them. Returns an empty copy for a
    class body whose namespace is not a dict."""
    values = frame.f_locals
    if not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        named = _plain.items(values) if _plain.is_a(values, dict) else []
        return {name: value for name, value in named if type(name) is str}
    found = dict(values)
    # Before Python 3.13, reading `f_locals` leaves a dictionary in a function's frame. The
    # dictionary keeps the values alive. Clear it unless `locals()` or a debugger uses it too.
    if sys.version_info < (3, 13) and sys.gettrace() is None and sys.getrefcount(values) <= 3:
        values.clear()
    return found


def place(frame: types.FrameType, line: int | None = None) -> str:
    """Returns a frame's place as `f() at file:line`."""
    code = frame.f_code
    return f"{code.co_qualname}() at {code.co_filename}:{line or frame.f_lineno}"


def thread_names() -> dict[int | None, str]:
    """Returns the names of the running threads, keyed by thread number."""
    return {
        _of_thread(thread, threading.Thread.ident): name_of(thread)
        for thread in threading.enumerate()
    }


def name_of(thread: threading.Thread) -> str:
    """Returns the name of a thread. Does not run a subclass's override of `name`."""
    name = _of_thread(thread, threading.Thread.name)
    return name if type(name) is str else "?"


def _of_thread(thread: threading.Thread, getter: Any) -> Any:
    try:
        return getter.fget(thread)
    except Exception:
        # The thread's class does not call `Thread.__init__`.
        return None


def is_alive(thread: threading.Thread) -> bool:
    """Returns whether a thread is running. Does not run code of the thread's class."""
    return any(thread is one for one in threading.enumerate())


def dead_thread(frame: types.FrameType) -> threading.Thread | None:
    """Returns the ended thread that ran a frame. Returns `None` if the thread is still alive."""
    outermost = frame
    while outermost.f_back is not None:
        outermost = outermost.f_back
    if outermost.f_code is not threading.Thread._bootstrap.__code__:  # type: ignore[attr-defined]
        return None
    thread = _locals(outermost).get("self")
    return thread if thread is not None and not is_alive(thread) else None


def is_suspended(frame: types.FrameType) -> bool:
    """Returns whether a generator or a coroutine will resume the frame."""
    flags = frame.f_code.co_flags
    if not flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        return False
    return any(frame_of(found) is frame for found in gc.get_objects())


def resumable_on_stack() -> list[weakref.ref[Any]]:
    """Returns weak references to the generators and coroutines that run on this thread, the
    innermost first. Leaves out generators that `contextlib` or pytest drive, because such a
    generator is suspended while the code of its `with` block or test runs."""
    found = []
    frame: types.FrameType | None = sys._getframe()
    while frame is not None:
        back = frame.f_back
        if frame.f_code.co_flags & _RESUMABLE and not (
            _is_driver(frame) or (back is not None and _is_driver(back))
        ):
            opener = _opener(frame)
            if opener is not None:
                found.append(weakref.ref(opener))
        frame = back
    return found


_RESUMABLE = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def _is_driver(frame: types.FrameType) -> bool:
    name = frame.f_globals.get("__name__")
    return type(name) is str and (name == "contextlib" or name.startswith("_pytest."))


def _opener(frame: types.FrameType) -> Any:
    """Returns the generator or the coroutine of a frame. Returns `None` if the interpreter does not
    expose the generator."""
    if sys.version_info >= (3, 14):
        return frame.f_generator
    try:
        import ctypes

        get = ctypes.pythonapi.PyFrame_GetGenerator
    except (ImportError, AttributeError):
        return None
    get.argtypes, get.restype = [ctypes.py_object], ctypes.py_object
    return get(frame)


def frame_of(node: Any) -> types.FrameType | None:
    """Returns the frame of a generator or coroutine that has not ended. Returns `None` for other
    objects."""
    kind = type(node)
    found: types.FrameType | None = None
    if kind is types.GeneratorType:
        found = node.gi_frame
    elif kind is types.CoroutineType:
        found = node.cr_frame
    elif kind is types.AsyncGeneratorType:
        found = node.ag_frame
    return found


def is_generator(node: Any) -> bool:
    """Returns whether an object is a generator or a coroutine."""
    kind = type(node)
    return (
        kind is types.GeneratorType
        or kind is types.CoroutineType
        or kind is types.AsyncGeneratorType
    )
