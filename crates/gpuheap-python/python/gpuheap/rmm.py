"""Makes RMM, the memory manager of RAPIDS, allocate from a heap of gpuheap.

    import gpuheap.rmm
    gpuheap.rmm.install()                   # cuDF, cuML and all that takes RMM's current resource

RMM calls Python for each allocation and each free, and holds the interpreter's lock. An allocation
and its free take one to two microseconds, on one thread at a time. Half of this time is RMM's own
call. `build()` compiles a resource without these calls, once for each version of RMM. No garbage
collection runs inside RMM's calls, because RMM may hold its own locks.
"""

# Type checkers confuse the library with this module of the same name.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from gpuheap import _gpuheap, _heap
from gpuheap._errors import BadInput
from gpuheap._rmm_build import build, native

__all__ = ["build", "install", "resource", "uninstall"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def resource(heap: _heap.Heap | None = None) -> Any:
    """Returns a memory resource of RMM over `heap`, or over the default heap. The resource is of
    the class that `build()` compiled, or an `rmm.mr.CallbackMemoryResource`. Adaptors can wrap the
    resource."""
    import rmm

    compiled = native()
    if compiled is not None:
        return compiled.Resource(_gpuheap._RmmHeap(_heap.default_heap() if heap is None else heap))
    from rmm.mr import CallbackMemoryResource
    from rmm.pylibrmm.stream import Stream

    if not hasattr(Stream, "__cuda_stream__"):
        raise BadInput(
            f"RMM {rmm.__version__} does not tell which stream it allocates on; install a release with "
            "Stream.__cuda_stream__, such as 26.10"
        )
    heap = _heap.default_heap() if heap is None else heap
    allocate, free = heap._allocate_address, heap._free_address

    # RMM makes a new stream object for each call. The object does not keep the stream alive, so the
    # heap gets the handle as a number.
    def deallocate(address: int, nbytes: int, stream) -> None:
        free(address, stream.__cuda_stream__()[1])

    def request(nbytes: int, stream) -> int:
        return allocate(nbytes, stream.__cuda_stream__()[1], True, "RMM")

    return CallbackMemoryResource(request, deallocate)


#: Devices whose RMM resource is gpuheap's. An entry has the device's ordinal, gpuheap's resource,
#: and the resource that it replaced.
_installed: list[tuple[int, Any, Any]] = []


def install(heap: _heap.Heap | list[_heap.Heap] | None = None) -> Any:
    """Makes `resource(heap)` RMM's resource for the heap's device. With a list of heaps, sets the
    resource for each heap's device. Returns the first resource. Call this before setting up
    adaptors and cuDF's spilling, so that these wrap the resource."""
    import rmm

    if _installed:
        raise BadInput("gpuheap is installed for RMM already; call gpuheap.rmm.uninstall() first")
    heaps = _heap.listed(heap)
    for each in heaps:
        if each.device.emulated:
            raise BadInput(
                f"{each.device.name} is emulated inside gpuheap, and RMM cannot read its memory; RMM needs a real GPU"
            )
    made = [(each.device.ordinal, resource(each)) for each in heaps]
    _check_runs(rmm)
    for ordinal, of_device in made:
        before = rmm.mr.get_per_device_resource(ordinal)
        rmm.mr.set_per_device_resource(ordinal, of_device)
        _installed.append((ordinal, of_device, before))
    rmm.register_reinitialize_hook(_forget)
    return made[0][1]


def _check_runs(rmm: Any) -> None:
    """Raises an error if RMM cannot allocate, as under an emulated driver."""
    try:
        rmm.DeviceBuffer(size=1)
    except Exception as error:
        raise BadInput(
            f"RMM cannot allocate here ({error}); it needs a real GPU and its driver"
        ) from None


def uninstall() -> None:
    """Restores the earlier resources, unless the program has set other resources. Allocated memory
    stays valid."""
    import rmm

    if _installed:
        for ordinal, made, before in _installed:
            if rmm.mr.get_per_device_resource(ordinal) is made:
                rmm.mr.set_per_device_resource(ordinal, before)
        rmm.unregister_reinitialize_hook(_forget)
        _forget()


def _forget() -> None:
    _installed.clear()
