"""Flushes heaps. Can first release memory that only tracebacks, frames of ended threads or notebook
outputs hold."""

from __future__ import annotations

import functools
import gc
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

from gpuheap import _frames
from gpuheap._heap import FlushReport, Released, by_device, default_heap, known_heaps
from gpuheap._meter import live_bytes

_LAST = ("last_exc", "last_value", "last_type", "last_traceback")


def flush(tracebacks: bool = False, outputs: bool = False) -> FlushReport:
    """Collects Python's garbage, and flushes the default heap and the heaps of
    `install(devices=...)`.

    With `tracebacks`, first releases objects that an error left and no code needs. These are
    `sys.last_exc`, `sys.last_value`, `sys.last_traceback`, IPython's stored traceback, and the
    locals in tracebacks of ended threads. The exceptions themselves stay, with their text and
    lines. With `outputs`, also empties IPython's `Out`, `_`, `__`, `___` and `_1`, `_2`... Never
    touches a running frame, or a frame that a generator will resume.

    The report's attribute `released` has the bytes that each release freed. Waits for frees in
    flight.
    """
    gc.collect()
    released = []
    for name, release in _steps(tracebacks, outputs):
        before = live_bytes()
        release()
        gc.collect()
        released.append(Released(name, before - live_bytes()))
    default_heap()
    reports = [(heap, heap.flush()) for heap in known_heaps()]
    report = reports[0][1] if len(reports) == 1 else FlushReport(*by_device(reports))
    report.released = released
    return report


def _steps(tracebacks: bool, outputs: bool) -> Iterator[tuple[str, Callable[[], None]]]:
    shell = _ipython()
    if tracebacks:
        kept = [f"sys.{name}" for name in _LAST if name != "last_type" and hasattr(sys, name)]
        if kept:
            yield ", ".join(kept), _forget_last_error
        if shell is not None:
            yield "IPython's traceback", lambda: _forget_traceback(shell)
        for thread, frames in _frames_of_dead_threads().items():
            yield f"locals of thread {thread}, which ended", functools.partial(_clear, frames)
    if outputs and shell is not None:
        yield "IPython's outputs", lambda: _forget_outputs(shell)


def _forget_last_error() -> None:
    for name in _LAST:
        if hasattr(sys, name):
            delattr(sys, name)


def _ipython() -> Any:
    """Returns IPython's shell. Returns `None` if the program does not run in IPython."""
    module = sys.modules.get("IPython")
    return module.get_ipython() if module is not None else None


def _forget_traceback(shell: Any) -> None:
    for name in ("InteractiveTB", "SyntaxTB"):
        shown = getattr(shell, name, None)
        for part in ("tb", "etype", "evalue", "last_syntax_error"):
            if getattr(shown, part, None) is not None:
                setattr(shown, part, None)
    result = getattr(shell, "last_execution_result", None)
    if result is not None:
        result.error_in_exec = result.error_before_exec = None


def _forget_outputs(shell: Any) -> None:
    shell.displayhook.flush()
    # IPython's `flush` clears these names in the user's namespace. `user_ns_hidden` still refers to
    # the outputs and would keep their memory live, so clear the names there too.
    shell.user_ns_hidden.update(
        (name, "") for name in ("_", "__", "___") if name in shell.user_ns_hidden
    )
    result = getattr(shell, "last_execution_result", None)
    if result is not None:
        result.result = None


def _frames_of_dead_threads() -> dict[str, list[types.FrameType]]:
    """Returns frames that a traceback keeps after their thread ended, keyed by thread name."""
    running = {id(frame) for _, frame in _frames.running_frames()}
    found: dict[str, dict[int, types.FrameType]] = {}
    for traceback in gc.get_objects():
        if type(traceback) is not types.TracebackType or id(traceback.tb_frame) in running:
            continue
        thread = _frames.dead_thread(traceback.tb_frame)
        if thread is not None:
            found.setdefault(thread.name, {})[id(traceback.tb_frame)] = traceback.tb_frame
    return {name: list(frames.values()) for name, frames in found.items()}


def _clear(frames: list[types.FrameType]) -> None:
    for frame in frames:
        if not _frames.is_suspended(frame):
            frame.clear()
    frames.clear()
