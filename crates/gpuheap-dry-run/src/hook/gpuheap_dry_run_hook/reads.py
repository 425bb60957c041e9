"""Watches reads of results: copies from the device to the host."""

import ctypes
import os
import sys

from .callbacks import called_by_native_code, guarded
from .hang import check_progress
from .lines import innermost, own_frames, place, reader
from .native_stack import operator_that_reads, prepare_native_stacks
from .process import MOST_LINES, state
from .results import NOT_CHOSEN, Copy, put_result
from .sizes import becomes_size

# Number of reads at one line after which the command warns that the program may wait forever for a
# value.
MANY_READS = 10_000
READ = ctypes.CFUNCTYPE(None, ctypes.POINTER(Copy))


def watch_reads():
    libcuda = ctypes.CDLL("libcuda.so.1")
    register = getattr(libcuda, "gpuheap_emulated_on_copy_to_host", None)
    if register is None:
        return
    register.argtypes = [READ]
    register.restype = None
    guarded(prepare_native_stacks)(register)
    # The emulated runtime is loaded before all other libraries.
    runtime = ctypes.CDLL(None)
    state.operands = getattr(runtime, "gpuheap_emulated_operands", None)
    state.memory = getattr(runtime, "gpuheap_emulated_allocated", None)
    if state.operands is not None:
        state.operands.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        state.operands.restype = ctypes.c_size_t
    state.callback = READ(called_by_native_code(read_from_device))
    register(state.callback)
    state.register = register


def stop_watching():
    """Stops callbacks: while the interpreter exits, they would wait for its lock forever."""
    if state.callback is not None:
        state.register(READ())


def read_from_device(copy):
    """Called by the emulated driver for each copy to the host, on the thread that copies."""
    if state.lines is None:
        return
    state.reads += 1
    # On a thread of native code, this function is the only Python frame.
    frame = next(own_frames(sys._getframe()), None)
    at = None if frame is None else (frame.f_code, frame.f_lineno)
    operator, chooses_size = guarded(operator_that_reads)() or (None, False)
    # Finds the line that reads the copied result, in the program or in a library that it calls.
    reads_at = reader(sys._getframe())
    at_reader = None if reads_at is None else (reads_at.f_code, reads_at.f_lineno)
    result = NOT_CHOSEN
    if copy:
        caller = innermost(sys._getframe())
        result = guarded(put_result)(copy.contents, operator, caller, at_reader) or NOT_CHOSEN
    if not chooses_size and type(result.value) is int and reads_at is not None:
        operator, chooses_size = "item", guarded(becomes_size)(reads_at)
        if chooses_size and not result.is_bound:
            file = os.path.basename(reads_at.f_code.co_filename)
            rule = f"--read {file}:{reads_at.f_lineno}=NUMBER"
            state.note(
                f"a number that was read is a size, and was {result.value}: set it with {rule}"
            )
    if chooses_size:
        note_read(state.sizes, (at_reader, operator), result)
    if at is None:
        return
    times = note_read(state.lines, at, result)
    if times == MANY_READS:
        guarded(many_reads)(place(frame))
    check_progress(place, frame)


class Reads:
    """Number of copies to the host by one place in the code, and the last result."""

    def __init__(self):
        self.times = 0
        self.last = NOT_CHOSEN
        # True if each read value was a count of elements, and the hook chose the largest possible
        # count.
        self.is_bound = True

    def text(self):
        """Returns the last result that the hook chose, as text; None if it chose no result."""
        value = self.last.value
        if value is None:
            return None
        return f"{value:.3g}" if isinstance(value, float) else str(value)


def note_read(reads, key, result):
    """Counts a read at the place `key`. Returns the number of its reads; 0 if `reads` is full."""
    found = reads.get(key)
    if found is None:
        if len(reads) >= MOST_LINES:
            return 0
        found = reads[key] = Reads()
    found.times += 1
    found.is_bound &= result.is_bound
    if result is not NOT_CHOSEN:
        found.last = result
    return found.times


def many_reads(line):
    """Writes a file that makes `gpuheap dry-run` warn that the program may never end."""
    path = os.path.join(state.folder, f"reads.{os.getpid()}.txt")
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"{MANY_READS} {line}\n")
