"""Makes CuPy allocate device and pinned memory from a heap of gpuheap.

    import gpuheap.cupy
    gpuheap.cupy.install()
    array = cupy.zeros(1_000_000)           # from the heap, in the order of CuPy's current stream

If memory runs out, an allocation raises an error that is both CuPy's `OutOfMemoryError` and
gpuheap's `OutOfMemory`.
"""

# Type checkers confuse the library `cupy` with this module of the same name.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from functools import cache

from gpuheap import _heap
from gpuheap._errors import BadInput, OutOfMemory
from gpuheap._gpuheap import _CupyAllocator

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


#: CuPy's earlier allocator. Empty while the heap does not serve CuPy.
_before: list[Any] = []


class Allocator(_CupyAllocator):
    """An allocator for `cupy.cuda.set_allocator`. Takes memory from the heap of CuPy's current
    device. Memory is freed in the order of the stream that was current at the allocation."""

    heap: _heap.Heap

    def __new__(cls, heap: _heap.Heap, *others: _heap.Heap) -> Allocator:
        for each in (heap, *others):
            if each.device.emulated:
                raise BadInput(
                    f"{each.device.name} is emulated inside gpuheap, and CuPy cannot read its memory; CuPy needs "
                    "a real GPU"
                )
        made = super().__new__(cls, [heap, *others])
        # Pinned memory is allocated from the heap of the first device.
        made.heap = heap
        return made

    @staticmethod
    def _error(error: Exception, nbytes: int) -> Exception:
        """Returns the exception for a request of `nbytes` that failed with `error`."""
        return _error_class()._of(error, nbytes) if isinstance(error, OutOfMemory) else error


class PinnedAllocator:
    """An allocator for `cupy.cuda.set_pinned_memory_allocator`."""

    def __init__(self, heap: _heap.Heap) -> None:
        from cupy.cuda.pinned_memory import PinnedMemoryPointer

        self.heap, self._pointer = heap, PinnedMemoryPointer

    def __call__(self, nbytes: int):
        return self._pointer(_Pinned(self.heap.pinned(nbytes), nbytes), 0)


class _Pinned:
    """Pinned memory with the attributes that CuPy's pointers read."""

    def __init__(self, memory, nbytes: int) -> None:
        self.memory, self.ptr, self.size = memory, memory.ptr, nbytes


def install(heap: _heap.Heap | list[_heap.Heap] | None = None) -> Allocator:
    """Makes CuPy allocate from `heap`, or from the default heap. `heap` may be a list with one heap
    for each device. Existing CuPy arrays keep their memory. `uninstall` restores the earlier
    allocators."""
    import cupy

    made = Allocator(*_heap.listed(heap))
    if isinstance(cupy.cuda.get_allocator(), Allocator):
        raise BadInput("gpuheap is installed for CuPy already; call gpuheap.cupy.uninstall() first")
    _before[:] = [cupy.cuda.get_allocator()]
    cupy.cuda.set_allocator(made)
    cupy.cuda.set_pinned_memory_allocator(PinnedAllocator(made.heap))
    return made


def uninstall() -> None:
    """Restores the earlier allocator of device memory. For pinned memory, restores CuPy's own pool,
    because CuPy does not expose its pinned allocator. Arrays from the heap stay valid. Does nothing
    if the program has set another allocator."""
    import cupy

    if not _before or not isinstance(cupy.cuda.get_allocator(), Allocator):
        return
    cupy.cuda.set_allocator(_before.pop())
    cupy.cuda.set_pinned_memory_allocator(cupy.get_default_pinned_memory_pool().malloc)


@cache
def _error_class() -> Any:
    from cupy.cuda.memory import OutOfMemoryError

    class HeapOutOfMemoryError(OutOfMemory, OutOfMemoryError):
        """CuPy's out-of-memory exception with gpuheap's figures."""

        def __init__(self, text: str) -> None:
            MemoryError.__init__(self, text)

        def __str__(self) -> str:
            return self.args[0]

        def __reduce__(self):
            return OutOfMemory.__reduce__(self)

        @classmethod
        def _of(cls, error: OutOfMemory, nbytes: int):
            made = cls(str(error))
            made.figures = error.figures
            return made

    return HeapOutOfMemoryError
