"""Memory of gpuheap for Numba (numba-cuda): an External Memory Manager.

    import gpuheap.numba
    gpuheap.numba.install()             # before the first use of the GPU by Numba

    from numba import cuda
    array = cuda.device_array(1000)

The environment variable `NUMBA_CUDA_MEMORY_MANAGER=gpuheap.numba` does the same without a line of code.
Memory goes back when the array is collected, on whichever thread: Numba's own manager keeps it in a list.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gpuheap._hook import check_device, heap_for, refusal, twice

if TYPE_CHECKING:
    from gpuheap._heap import Heap

_chosen: Heap | None = None


def install(heap: Heap | None = None) -> Callable[[], None]:
    """Makes a heap the memory manager of Numba; the default heap without one.

    Raises `gpuheap.BadInput` if Numba has used the GPU already: its contexts keep their manager. Returns a
    function that undoes it, which refuses once Numba has used the GPU.
    """
    global _chosen
    from numba import cuda
    from numba.cuda.cudadrv import driver

    manager = _manager_class()
    before = driver._memory_manager
    if before is manager:
        raise twice("Numba")
    _refuse_contexts("install gpuheap before it, or set NUMBA_CUDA_MEMORY_MANAGER=gpuheap.numba")
    _chosen = heap_for("Numba", heap)
    cuda.set_memory_manager(manager)

    def undo() -> None:
        global _chosen
        _refuse_contexts("call cuda.close() before, and free its arrays")
        driver._memory_manager = before
        _chosen = None

    return undo


def _refuse_contexts(remedy: str) -> None:
    from numba.cuda.cudadrv.driver import driver

    if any(device.primary_context is not None for device in driver.devices.values()):
        raise refusal("AlreadyInitialised", f"Numba has used the GPU already, and keeps its memory manager; {remedy}")


def __getattr__(name: str) -> Any:
    # Read by Numba for NUMBA_CUDA_MEMORY_MANAGER.
    if name == "_numba_memory_manager":
        return _manager_class()
    raise AttributeError(f"module 'gpuheap.numba' has no attribute {name!r}")


@functools.cache
def _manager_class() -> type:
    import ctypes
    import weakref

    from numba.cuda import GetIpcHandleMixin, HostOnlyCUDAMemoryManager, MemoryInfo, MemoryPointer
    from numba.cuda.cudadrv.driver import driver

    class GpuheapManager(GetIpcHandleMixin, HostOnlyCUDAMemoryManager):  # type: ignore[misc, unused-ignore]
        """Device memory of a gpuheap heap. Numba makes one for each context."""

        interface_version = 1
        _heap: Heap | None = None

        def initialize(self) -> None:
            """Does nothing: the heap is opened with the first array."""

        def memalloc(self, size: int) -> Any:
            """Allocates on the default stream: Numba names none, and its own streams wait for that one."""
            heap = self._heap or self._open()
            # An empty array has an address too.
            block = heap.alloc(size or 1)
            context = weakref.proxy(self.context)
            return MemoryPointer(context, ctypes.c_void_p(block.ptr), size, finalizer=block.free)

        def get_memory_info(self) -> Any:
            """Bytes that the heap can still hand out, and bytes of the device."""
            heap = self._heap or self._open()
            free, total = driver.cuMemGetInfo()
            stats, limit = heap.stats(), heap.limits[0]
            free += stats["cached"]
            if limit is not None:
                free = min(free, max(limit - stats["live"], 0))
            return MemoryInfo(free=free, total=total)

        def _open(self) -> Heap:
            heap = heap_for("Numba", _chosen)
            check_device("Numba", heap, self.context.device.id)
            self._heap = heap
            return heap

    return GpuheapManager
