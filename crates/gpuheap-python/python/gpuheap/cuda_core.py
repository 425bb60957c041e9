"""Memory of gpuheap for cuda.core (1.0 or newer).

    import gpuheap.cuda_core
    from cuda.core import Device

    device = Device()
    device.set_current()
    stream = device.create_stream()
    device.memory_resource = gpuheap.cuda_core.resource()
    buffer = device.allocate(1 << 20, stream=stream)
    buffer.close(stream)
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gpuheap._hook import heap_for, twice

if TYPE_CHECKING:
    from gpuheap._heap import Heap


def resource(heap: Heap | None = None) -> Any:
    """Makes a `cuda.core.MemoryResource` of a heap; of the default heap without one.

    A buffer's memory goes back in the order of the stream that `Buffer.close(stream)` or
    `Buffer.set_deallocation_stream` names, and of the one that it was allocated on. Nothing waits.
    """
    return _resource_class()(heap_for("cuda.core", heap))


def install(heap: Heap | None = None) -> Callable[[], None]:
    """Makes a heap the memory resource of its device. Returns a function that undoes it: buffers that are
    alive stay valid."""
    from cuda.core import Device

    new = resource(heap)
    device = Device(new.device_id)
    device.set_current()
    before = device.memory_resource
    if isinstance(before, type(new)):
        raise twice("cuda.core")
    device.memory_resource = new

    def undo() -> None:
        if device.memory_resource is new:
            device.memory_resource = before

    return undo


@functools.cache
def _resource_class() -> type:
    from cuda.core import Buffer, MemoryResource

    class GpuheapResource(MemoryResource):  # type: ignore[misc, unused-ignore]
        """Device memory of a gpuheap heap."""

        def __init__(self, heap: Heap) -> None:
            self.heap = heap
            self._blocks: dict[int, Any] = {}

        def allocate(self, size: int, *, stream: Any) -> Any:
            block = self.heap.alloc(size, stream)
            pointer = block.ptr
            self._blocks[pointer] = block
            try:
                return Buffer.from_handle(pointer, size, mr=self, stream=stream)
            except BaseException:
                self._blocks.pop(pointer, None)
                raise

        def deallocate(self, ptr: Any, size: int, *, stream: Any) -> None:
            block = self._blocks.pop(int(ptr), None)
            if block is not None:
                block.free(stream)

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
            return self.heap.device.ordinal

    return GpuheapResource
