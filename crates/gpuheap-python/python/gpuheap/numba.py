"""Makes Numba allocate device memory from a heap of gpuheap. This module is an External Memory
Management plugin.

Select the plugin either in the environment, before the program starts:

    NUMBA_CUDA_MEMORY_MANAGER=gpuheap.numba python program.py

or in the program, before its first use of the GPU:

    import gpuheap.numba
    gpuheap.numba.install()

Numba names no stream when it allocates, so memory is ordered on the legacy default stream. Numba's
own streams are ordered with that stream; order other streams yourself. Memory that the program
drops is freed at once, without waiting for Numba's next cleanup.
"""

# Type checkers confuse the library `numba` with this module of the same name.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from cuda.bindings.driver import CUdeviceptr
from numba import cuda
from numba.cuda import HostOnlyCUDAMemoryManager, MemoryInfo, MemoryPointer

from gpuheap import _heap
from gpuheap._errors import BadInput


def install(heap: _heap.Heap | None = None) -> None:
    """Makes Numba allocate device memory from `heap`, or from the default heap. Each other device
    gets a separate heap. Call this before Numba makes a context: Numba rejects later calls."""
    global _heap_given
    from numba.cuda.cudadrv import devices, driver

    if heap is not None and heap.device.emulated:
        raise BadInput(
            f"{heap.device.name} is emulated inside gpuheap, and Numba cannot read its memory; run the program "
            'under `python -m gpuheap emulate`, and make the heap for "cuda:0"'
        )
    if driver._memory_manager is HeapManager:
        raise BadInput(
            "gpuheap is installed for Numba already; it serves all arrays until the process ends"
        )
    if devices.gpus.lst and any(gpu.primary_context is not None for gpu in devices.gpus.lst):
        raise BadInput(
            "Numba has used the GPU already and keeps its own memory; call install() before the first use of "
            "numba.cuda, or set NUMBA_CUDA_MEMORY_MANAGER=gpuheap.numba"
        )
    _heap_given = heap
    cuda.set_memory_manager(HeapManager)


_heap_given: _heap.Heap | None = None
#: Heaps of the other devices, keyed by device ordinal.
_others: dict[int, _heap.Heap] = {}


class HeapManager(HostOnlyCUDAMemoryManager):
    """A memory manager that takes device memory from a heap. Numba allocates pinned and mapped
    memory itself."""

    def __init__(self, *arguments, **keywords) -> None:
        super().__init__(*arguments, **keywords)
        self._heap: _heap.Heap | None = None

    @property
    def heap(self) -> _heap.Heap:
        """Returns the heap of this context's device."""
        if self._heap is None:
            self._heap = self._found()
        return self._heap

    def initialize(self) -> None:
        """Does nothing, because the first allocation makes the heap."""

    def _found(self) -> _heap.Heap:
        ordinal = self.context.device.id
        _heap.default_heap()
        for heap in (_heap_given, *_heap.known_heaps()):
            if heap is not None and not heap.device.emulated and heap.device.ordinal == ordinal:
                return heap
        # No known heap serves this device, so the device gets a separate heap.
        if ordinal not in _others:
            _others[ordinal] = _heap.Heap(f"cuda:{ordinal}")
        return _others[ordinal]

    def memalloc(self, size: int) -> MemoryPointer:
        address = self.heap._allocate_address(max(size, 1), library="Numba")
        return MemoryPointer(
            self.context, CUdeviceptr(address), size, finalizer=_Freer(self.heap, address)
        )

    def get_memory_info(self) -> MemoryInfo:
        status = self.heap.status()
        if status.device_used is None:
            raise RuntimeError("the driver does not report how much of the device is free")
        return MemoryInfo(free=status.device_total - status.device_used, total=status.device_total)

    def get_ipc_handle(self, memory) -> None:
        raise NotImplementedError("memory of gpuheap is not shared between processes")

    def reset(self) -> None:
        super().reset()
        if self._heap is not None:
            self._heap.flush()

    @property
    def interface_version(self) -> int:
        return 1


class _Freer:
    """A finalizer that frees an address when Numba calls it. Each allocation has a finalizer, so
    this class is small."""

    __slots__ = ("address", "heap")

    def __init__(self, heap: _heap.Heap, address: int) -> None:
        self.heap, self.address = heap, address

    def __call__(self) -> None:
        self.heap._free_address(self.address)


_numba_memory_manager = HeapManager
