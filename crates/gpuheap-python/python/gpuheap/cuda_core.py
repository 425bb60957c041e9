"""Makes cuda.core allocate device memory from a heap of gpuheap.

    import gpuheap.cuda_core
    from cuda.core import Device

    device = Device()
    device.set_current()
    gpuheap.cuda_core.install()             # device.allocate and all that uses it
    buffer = device.allocate(1 << 20, stream=device.create_stream())

`resource()` makes the memory resource without installing it, to be passed as an argument. Needs
cuda-core 1.0 or newer.
"""

# The annotations name `MemoryResource`, which lacks the attribute `before` of `HeapResource`.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from functools import cache

from gpuheap import _heap
from gpuheap._errors import BadInput

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cuda.core import MemoryResource


def resource(heap: _heap.Heap | None = None) -> MemoryResource:
    """Returns a `cuda.core.MemoryResource` over `heap`, or over the default heap.

    A buffer is freed when it is closed or collected. The free is ordered after the work of two
    streams: the stream of the allocation, and the stream on which the buffer is closed. If memory
    runs out, an allocation raises `gpuheap.OutOfMemory`.
    """
    heap = _heap.default_heap() if heap is None else heap
    if heap.device.emulated:
        raise BadInput(
            f"{heap.device.name} is emulated inside gpuheap, and cuda.core cannot read its memory; run the "
            'program under `python -m gpuheap emulate`, and make the heap for "cuda:0"'
        )
    return _resource_class()(heap)


def install(heap: _heap.Heap | None = None) -> MemoryResource:
    """Makes `resource(heap)` the memory resource of the heap's device. Returns the new resource.
    Its attribute `before` is the earlier resource, which `uninstall` restores."""
    from cuda.core import Device

    made = resource(heap)
    device = Device(made.device_id)
    if isinstance(device.memory_resource, _resource_class()):
        raise BadInput(f"gpuheap is installed for {device.name} already; call uninstall() first")
    made.before = device.memory_resource
    device.memory_resource = made
    return made


def uninstall(installed: MemoryResource) -> None:
    """Restores the earlier memory resource. Buffers of `installed` stay valid. Does nothing if the
    program has set another resource in the meantime."""
    from cuda.core import Device

    device = Device(installed.device_id)
    if device.memory_resource is installed:
        device.memory_resource = installed.before


@cache
def _resource_class() -> type[MemoryResource]:
    from cuda.core import Buffer, MemoryResource

    class HeapResource(MemoryResource):
        """Device memory from a heap of gpuheap."""

        def __init__(self, heap: _heap.Heap) -> None:
            self.heap = heap
            self.before: MemoryResource | None = None
            self._ordinal = heap.device.ordinal
            self._take, self._free = heap._allocate_address, heap._free_address

        def allocate(self, size: int, *, stream) -> Buffer:
            address = self._take(size, stream, False, "cuda.core")
            return Buffer.from_handle(address, size, mr=self, stream=stream)

        def deallocate(self, ptr, size: int, *, stream=None) -> None:
            self._free(int(ptr), stream)

        @property
        def is_device_accessible(self) -> bool:
            return True

        @property
        def is_host_accessible(self) -> bool:
            return False

        @property
        def is_managed(self) -> bool:
            return False

        @property
        def device_id(self) -> int:
            return self._ordinal

    return HeapResource
