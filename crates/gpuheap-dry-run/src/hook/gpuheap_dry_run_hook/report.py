"""Writes reports of the process, for `gpuheap dry-run` to read."""

import ctypes
import json
import os
import sys
import time

from .callbacks import guarded
from .lines import line_at, line_of
from .process import state

# Modules whose libraries do not run on the emulated driver.
NOT_SERVED = ("cupy", "rmm", "cudf", "cuml")


def write():
    state.written = time.monotonic()
    torch = state.torch
    reads = [] if state.lines is None else list(state.lines.items())
    reads.sort(key=lambda item: -item[1].times)
    report = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "allocator": os.environ.get("PYTORCH_CUDA_ALLOC_CONF")
        or os.environ.get("PYTORCH_ALLOC_CONF"),
        "rank": os.environ.get("RANK"),
        "steps": state.step(),
        "ended": state.ended,
        "devices": list(state.peaks.values()),
        "failures": state.failures,
        "failed": state.count_of_failures,
        "failures_watched": state.is_recording,
        "went_on": bool(state.count_of_failures and state.steps_after_failure),
        "reads": state.reads,
        "reads_watched": state.callback is not None,
        "lines": [
            {"line": line_of(code, line), "times": read.times, "value": read.text()}
            for (code, line), read in reads[:10]
        ],
        "sizes": [
            {
                "line": line_at(at),
                "operator": operator,
                "times": read.times,
                "value": read.text(),
                "is_bound": read.is_bound,
            }
            for (at, operator), read in list(state.sizes.items())
        ],
        "remedies": {} if state.remedies is None else state.remedies.found,
        "hang": state.hang,
        "notes": state.notes,
    }
    replace(f"torch.{os.getpid()}.json", lambda file: file.write(json.dumps(report).encode()))


@guarded
def write_modules():
    """Writes which imported modules do not run on the emulated driver, and whether numba is used.

    A dry run does not count memory that a statically linked CUDA runtime takes. numba loads such a
    runtime, but takes all its memory from the driver, so its memory counts.
    """
    found = [name for name in NOT_SERVED if name in sys.modules]
    uses_driver = "numba.cuda" in sys.modules and not found
    if found or uses_driver:
        report = {"not_served": found, "uses_driver": uses_driver}
        replace(f"python.{os.getpid()}.json", lambda file: file.write(json.dumps(report).encode()))


def write_snapshot():
    torch = state.torch
    if not (state.is_recording and torch.cuda.is_initialized()):
        return
    import pickle

    snapshot = torch.cuda.memory._snapshot()
    replace(f"torch.{os.getpid()}.pickle", lambda file: pickle.dump(snapshot, file))
    if state.owners is not None:
        guarded(write_owners)(snapshot)


def write_owners(snapshot):
    function = getattr(ctypes.CDLL(None), "gpuheap_emulated_is_workspace", None)
    if function is not None:
        function.argtypes = [ctypes.c_ulonglong, ctypes.c_ulonglong]
    owners = state.owners.explain(snapshot, function or (lambda address, nbytes: 0))
    replace(f"owners.{os.getpid()}.json", lambda file: file.write(json.dumps(owners).encode()))


def replace(name, put):
    """Replaces a file atomically: a reader finds either the old content or the new content."""
    path = os.path.join(state.folder, name)
    with open(path + ".part", "wb") as file:
        put(file)
    os.replace(path + ".part", path)
