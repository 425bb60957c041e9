"""Hook of `gpuheap dry-run` in a Python program: reports steps, peaks, lines and reads of results.

Does nothing until the program imports `torch` or `jax`. Prints nothing. Raises `SystemExit` at the
limit of `--steps` or `--time-limit`, and raises no other exception.
"""

import atexit
import ctypes
import os
import signal
import sys
import threading
import time

from gpuheap_import_waiter import Waiter

from . import jax_pool
from .callbacks import guarded
from .owners import Owners
from .peaks import out_of_memory, step_ended, update_peaks
from .process import state
from .reads import stop_watching, watch_reads
from .remedies import Remedies
from .report import write, write_modules, write_snapshot
from .sequences import fill_packed_sequences
from .tuning import leave_out_tuning

# Maximum number of events in PyTorch's recorded history. An event takes a few hundred bytes of host
# memory.
MOST_EVENTS = 400_000
# Functions of PyTorch that the emulated runtime replaces or calls: library, symbol, and the note
# for the report if this PyTorch lacks the function.
REPORTS = (
    (
        "libc10.so",
        "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE",
        "this PyTorch does not report its blocks: reused memory may read as an earlier upload",
    ),
    (
        "libtorch_cpu.so",
        "aoti_torch_is_contiguous",
        "this PyTorch does not report changes of tensors: one may read as it was uploaded",
    ),
)


@guarded
def torch_imported(torch):
    state.torch = torch
    if torch.version.cuda is None:
        state.note("this PyTorch has no CUDA (a CPU-only build): it takes no memory of a GPU")
        atexit.register(end)
        return
    from torch.optim.optimizer import register_optimizer_step_post_hook

    register_optimizer_step_post_hook(step_ended)
    reset = torch._C._cuda_resetPeakMemoryStats

    def keep_peaks(*arguments):
        guarded(update_peaks)()
        return reset(*arguments)

    torch._C._cuda_resetPeakMemoryStats = keep_peaks
    guarded(prepare_owners)()
    guarded(leave_out_tuning)(torch)
    guarded(fill_packed_sequences)(torch)
    torch.cuda._lazy_call(guarded(device_opened))
    torch.cuda._lazy_call(guarded(write_presence))
    atexit.register(end)
    # Forked workers of `multiprocessing` end without `atexit`.
    from multiprocessing import util

    util.register_after_fork(state, lambda _: util.Finalize(None, end, exitpriority=0))


def prepare_owners():
    state.remedies = Remedies(state.torch, state.note)
    state.remedies.start()
    state.owners = Owners(state.torch, state.note)
    state.owners.on_enter.append(state.remedies.enter)
    state.owners.on_leave.append(state.remedies.leave)


def device_opened():
    torch = state.torch
    guarded(end_by_signal)()
    guarded(watch_reads)()
    backend = torch.cuda.get_allocator_backend()
    state.has_stats = backend in ("native", "cudaMallocAsync")
    if not state.has_stats:
        guarded(watch_heap)()
        state.note(
            f"the program replaced PyTorch's own allocator (by {backend}): PyTorch's peaks are not "
            "known, and no trace is recorded"
        )
    if backend == "cudaMallocAsync":
        state.note("PyTorch uses the driver's pool (cudaMallocAsync), which records no trace")
    if backend != "native":
        return
    guarded(check_reports)()
    torch._C._cuda_attach_out_of_memory_observer(guarded(out_of_memory))
    torch.cuda.memory._record_memory_history(
        enabled="all", context="alloc", stacks="python", max_entries=MOST_EVENTS
    )
    state.is_recording = True
    if state.owners is not None:
        guarded(state.owners.watch)()


def write_presence():
    """Writes a report, in case the process is killed before its first step."""
    write()
    # The first step is reported at once.
    state.written = 0.0


def check_reports():
    for library, function, note in REPORTS:
        try:
            is_reported = hasattr(ctypes.CDLL(library), function)
        except OSError:
            is_reported = False
        if not is_reported:
            state.note(note)


def watch_heap():
    """Finds the emulated driver's function to call after each optimiser step.

    The program has replaced PyTorch's allocator by another heap. If a step completes after a
    refused request, the driver sees that the program caught the heap's error and continued.
    """
    state.heap_step_done = getattr(ctypes.CDLL("libcuda.so.1"), "gpuheap_emulated_step_done", None)


def end():
    if state.torch.version.cuda is not None:
        guarded(stop_watching)()
        guarded(update_peaks)()
        # Writes the report before the snapshot: a process may be killed while it writes a long
        # history.
        guarded(write)()
        # If no step followed the last failure, the failure counts as fatal. Then keeps the snapshot
        # that was written at the failure, because it explains the failure.
        if not state.count_of_failures or state.steps_after_failure:
            guarded(write_snapshot)()
    guarded(write)()


def end_without_atexit(code):
    """Replaces `os._exit`: first writes the reports, because some trainers end by `os._exit`."""
    if state.is_recording:
        guarded(end)()
    write_modules()
    exit_at_once(code)


exit_at_once = os._exit


def end_program(number, frame):
    """Handles SIGTERM, sent by the command at its time limit or by a user.

    Ends the program as `sys.exit` does, so that reports are written. Ignores further signals.
    """
    signal.signal(number, signal.SIG_IGN)
    if state.most_seconds and time.monotonic() - state.began >= state.most_seconds:
        state.ended = "time"
    # Writes the report already here. Other threads may delay the exit until `gpuheap dry-run` sends
    # SIGKILL, and then the exit writes no report.
    if state.torch is not None:
        guarded(update_peaks)()
        guarded(write)()
    raise SystemExit(128 + number)


def end_by_signal():
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, end_program)


def forked():
    if state.torch is not None:
        state.clear()


sys.meta_path[:0] = [Waiter("torch", torch_imported), Waiter(jax_pool.MODULE, jax_pool.imported)]
atexit.register(write_modules)
os._exit = end_without_atexit
os.register_at_fork(after_in_child=forked)
if state.most_seconds:
    end_by_signal()
