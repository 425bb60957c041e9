"""Makes PyCUDA allocate device memory from a heap of gpuheap.

    import pycuda.autoprimaryctx            # and not autoinit: see below
    import gpuheap.pycuda
    allocator = gpuheap.pycuda.allocator()
    array = pycuda.gpuarray.zeros(1000, "f4", allocator=allocator)

Any thread may free the memory, with or without a context. The message "device_allocation in
out-of-thread context could not be cleaned up" does not appear.

`pycuda.autoinit` makes a separate context. gpuheap and the CUDA runtime use the device's primary
context, and its memory is not valid in another context. `allocator()` then raises an error that
names `pycuda.autoprimaryctx`.
"""

# Type checkers confuse the library `pycuda` with this module of the same name.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from gpuheap import _heap
from gpuheap._errors import BadInput

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def allocator(heap: _heap.Heap | None = None) -> Callable[[int], Any]:
    """Returns a callable for the argument `allocator=` of PyCUDA's arrays. The callable takes a
    number of bytes, and returns a pointer that owns its memory. The memory is ordered on the
    legacy default stream."""
    from pycuda import driver

    of = _heap.default_heap() if heap is None else heap
    _check_context(driver, of)

    class Pointer(driver.PointerHolderBase):
        """A pointer that owns device memory of a heap. Collecting it frees the memory, on any
        thread."""

        def __init__(self, nbytes: int) -> None:
            super().__init__()
            self.buffer = of.alloc(nbytes)

        def get_pointer(self) -> int:
            return self.buffer.ptr

        def free(self) -> None:
            self.buffer.free()

        __int__ = __index__ = get_pointer

    return Pointer


def _check_context(driver: Any, heap: _heap.Heap) -> None:
    if heap.device.emulated:
        raise BadInput(
            f"{heap.device.name} is emulated inside gpuheap, and PyCUDA cannot read its memory; run the program "
            'under `python -m gpuheap emulate`, and make the heap for "cuda:0"'
        )
    current = driver.Context.get_current()
    if current is None:
        raise BadInput(
            "this thread has no context of PyCUDA; import pycuda.autoprimaryctx, or push a context that "
            "Device.retain_primary_context() gave"
        )
    primary = driver.Device(heap.device.ordinal).retain_primary_context()
    try:
        if primary.handle != current.handle:
            raise BadInput(
                "PyCUDA's current context is one of its own, as pycuda.autoinit makes it, and memory of a heap "
                "is of the device's primary context, so it is not valid there; import pycuda.autoprimaryctx in "
                "the place of pycuda.autoinit"
            )
    finally:
        primary.detach()
