"""PyCUDA: device memory from a heap of gpuheap.

    import pycuda.autoprimaryctx            # and not autoinit: see below
    import gpuheap.pycuda
    allocator = gpuheap.pycuda.allocator()
    array = pycuda.gpuarray.zeros(1000, "f4", allocator=allocator)

Any thread may free the memory, with or without a context: no "device_allocation in out-of-thread
context could not be cleaned up".

`pycuda.autoinit` makes its own context. Memory of the device's primary context, used by gpuheap and
the CUDA runtime, is not valid there. `allocator()` then raises, and names `pycuda.autoprimaryctx`.
"""

# Type checkers take the library for this module, by its name.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from gpuheap import _heap
from gpuheap._errors import BadInput

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def allocator(heap: _heap.Heap | None = None) -> Callable[[int], Any]:
    """Returns a callable for `allocator=` of PyCUDA's arrays: it takes bytes, and returns a pointer
    that owns its memory. Memory is ordered on the legacy default stream."""
    from pycuda import driver

    of = _heap.default_heap() if heap is None else heap
    _check_context(driver, of)

    class Pointer(driver.PointerHolderBase):
        """Device memory of a heap. The collection of this object frees it, on any thread."""

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
