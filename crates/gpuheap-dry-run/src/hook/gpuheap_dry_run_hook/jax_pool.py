"""Makes JAX choose the emulated device, and reports the peaks of JAX's allocator.

JAX takes most of a device's memory in advance, whatever the program needs. So the peaks inside its
pool are reported.
"""

import atexit
import json
import os
import re
import sys

from .callbacks import guarded
from .process import state
from .report import replace

# Module that searches for a GPU's files in `/dev`. JAX imports it before a device is opened.
MODULE = "jax._src.hardware_utils"
# JAX builds CUDA graphs node by node. The emulated driver cannot build such graphs, so this flag
# makes JAX launch kernels one by one.
NO_GRAPHS = "--xla_gpu_enable_command_buffer="
# Errors of JAX's allocator that ended the program.
failures = []


@guarded
def imported(module):
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{flags} {NO_GRAPHS}".strip()

    def is_visible():
        # JAX closes its devices by `atexit` too. The function that is registered last runs first.
        atexit.unregister(write_peaks)
        atexit.register(write_peaks)
        return True

    module.has_visible_nvidia_gpu = is_visible
    previous = sys.excepthook

    def exception_ended(kind, error, trace):
        if "RESOURCE_EXHAUSTED" in str(error):
            failures.append(str(error))
        previous(kind, error, trace)

    sys.excepthook = exception_ended


@guarded
def write_peaks():
    """Writes JAX's peaks in the form of PyTorch's report, unless PyTorch has a report."""
    jax = sys.modules.get("jax")
    if jax is None or state.torch is not None:
        return
    devices = []
    for device in jax.local_devices():
        stats = device.memory_stats() if device.platform == "gpu" else None
        if stats:
            peak = stats["peak_bytes_in_use"]
            # A pool that was taken in advance is as large as its limit.
            is_advance = stats["pool_bytes"] == stats["bytes_limit"]
            reserved = peak if is_advance else stats["peak_pool_bytes"]
            figures = {"requested": peak, "allocated": peak, "reserved": reserved}
            devices.append(
                {"device": device.id, "allocations": stats["num_allocs"], "step": 0, **figures}
            )
    report = {
        "torch": f"JAX {jax.__version__}",
        "devices": devices,
        "failures": [failure(text, devices) for text in failures],
        "failed": len(failures),
        "notes": [
            "JAX's peaks are those of its allocator (peak_bytes_in_use). In use has the memory that "
            "JAX takes in advance: 75 % of the card, or as XLA_PYTHON_CLIENT_MEM_FRACTION says. "
            "Kernels that JAX tries to choose the fastest may take other memory on a GPU"
        ],
    }
    replace(f"torch.{os.getpid()}.json", lambda file: file.write(json.dumps(report).encode()))


def failure(text, devices):
    """Makes the report's entry for a failed request from the text of the error.

    The text names no peaks of memory, so the entry gets the peaks at the exit.
    """
    size = re.search(r"alloc\w+ ([\d.]+) ?([KMGT]i)?B|alloc\w+ (\d+) bytes", text)
    if size is None:
        requested = 0
    elif size[3]:
        requested = int(size[3])
    else:
        units = [None, "Ki", "Mi", "Gi", "Ti"]
        requested = int(float(size[1]) * 1024 ** units.index(size[2]))
    peaks = {name: devices[0][name] for name in ("allocated", "reserved")} if devices else {}
    return {"device": 0, "requested": requested, "lines": [], **peaks}
