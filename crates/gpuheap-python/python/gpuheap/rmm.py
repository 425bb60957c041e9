"""RMM: the memory resource of RAPIDS over a heap of gpuheap.

    import gpuheap.rmm
    gpuheap.rmm.install()                   # cuDF, cuML and all that takes RMM's current resource

RMM calls Python for each allocation, under the interpreter's lock: about half a microsecond a pair, and one
thread at a time. No collection of garbage runs inside RMM's calls, because RMM may hold locks of its own.
"""

from __future__ import annotations

from gpuheap import _heap
from gpuheap._errors import BadInput


def resource(heap: _heap.Heap | None = None):
    """An `rmm.mr.CallbackMemoryResource` over `heap`, or over the default heap. Adaptors go around it."""
    from rmm.mr import CallbackMemoryResource

    heap = _heap.default_heap() if heap is None else heap
    allocate, free = heap._allocate_address, heap._free_address

    def deallocate(address: int, nbytes: int, stream) -> None:
        free(address, stream)

    def request(nbytes: int, stream) -> int:
        return allocate(nbytes, stream, True)

    return CallbackMemoryResource(request, deallocate)


_installed = None


def install(heap: _heap.Heap | None = None):
    """Makes `resource(heap)` RMM's resource for the heap's device, and returns it. Install it before
    cuDF's spilling and before adaptors, so that they go around it."""
    import rmm

    global _installed
    if _installed is not None:
        raise BadInput("gpuheap is installed for RMM already; rmm.reinitialize() puts RMM's own resource back")
    heap = _heap.default_heap() if heap is None else heap
    made = resource(heap)
    rmm.mr.set_per_device_resource(max(heap.device.ordinal, 0), made)
    _installed = made
    rmm.register_reinitialize_hook(_forget)
    return made


def _forget() -> None:
    global _installed
    _installed = None
