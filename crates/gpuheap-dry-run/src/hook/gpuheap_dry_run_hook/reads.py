"""Reads of results: copies from the device to the host."""

import ctypes
import os
import sys

from .callbacks import called_by_native_code, guarded
from .lines import own_frames, place
from .native_stack import operator_that_reads, prepare_native_stacks
from .process import MOST_LINES, state

# Number of reads at one line after which the command warns: the program may wait forever for a
# value.
MANY_READS = 10_000
READ = ctypes.CFUNCTYPE(None, ctypes.c_ulonglong)


def watch_reads():
    libcuda = ctypes.CDLL("libcuda.so.1")
    register = getattr(libcuda, "gpuheap_emulated_on_copy_to_host", None)
    if register is None:
        return
    register.argtypes = [READ]
    register.restype = None
    guarded(prepare_native_stacks)(register)
    state.callback = READ(called_by_native_code(read_from_device))
    register(state.callback)
    state.register = register


def stop_watching():
    """Ends callbacks before the interpreter ends. Later ones would wait forever for its lock."""
    if state.callback is not None:
        state.register(READ())


def read_from_device(bytes_read):
    """Called by the emulated driver for each copy to the host, on the thread that copies."""
    if state.lines is None:
        return
    state.reads += 1
    # On a thread of native code, this function is the only Python frame.
    frame = next(own_frames(sys._getframe()), None)
    operator = guarded(operator_that_reads)()
    if operator is not None:
        at = None if frame is None else (frame.f_code, frame.f_lineno)
        key = (at, operator)
        times = state.sizes.get(key, 0)
        if times or len(state.sizes) < MOST_LINES:
            state.sizes[key] = times + 1
    if frame is None:
        return
    key = (frame.f_code, frame.f_lineno)
    times = state.lines.get(key, 0)
    if times or len(state.lines) < MOST_LINES:
        state.lines[key] = times + 1
    if times + 1 == MANY_READS:
        guarded(many_reads)(place(frame))


def many_reads(line):
    """Warns the command at once that the program may never end."""
    path = os.path.join(state.folder, f"reads.{os.getpid()}.txt")
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"{MANY_READS} {line}\n")
