"""GPU memory that can be accounted for, and that comes back.

>>> import gpuheap
>>> heap = gpuheap.Heap("emulated:1GiB", limit="512MiB", track="lines")
>>> buffer = heap.alloc(1_000_000)
>>> heap.stats()["live"]
1000000
>>> buffer.free()
>>> heap.flush().given_back > 0
True

Importing this package opens no device and imports no GPU library. The modules for PyTorch, CuPy, Numba,
RMM, cuda.core and PyCUDA are `gpuheap.torch`, `gpuheap.cupy` and so on; `gpuheap.install()` installs what
is there.
"""

from __future__ import annotations

from gpuheap._errors import BadInput, Bug, DriverError, Error, Freed, Gone, OutOfMemory
from gpuheap._gpuheap import Buffer, Device, HostBuffer, Stream, __version__, devices
from gpuheap._heap import Heap, default_heap, set_default_heap, status, flush

__all__ = [
    "BadInput",
    "Buffer",
    "Bug",
    "Device",
    "DriverError",
    "Error",
    "Freed",
    "Gone",
    "Heap",
    "HostBuffer",
    "OutOfMemory",
    "Stream",
    "__version__",
    "default_heap",
    "devices",
    "flush",
    "set_default_heap",
    "status",
]
