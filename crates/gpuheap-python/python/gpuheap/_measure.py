"""GPU memory that the program has live, and its peak: of the default heap and of PyTorch's allocator."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from gpuheap import _heap
from gpuheap._heap import Line, Snapshot, size


class Usage(NamedTuple):
    """Live memory in a section of a program, above what was live at its start. Bytes."""

    #: Most at once. Of several allocators, the sum of their peaks.
    peak: int
    #: What was live at the end.
    kept: int
    #: Lines that hold more than at the start, the largest first. Needs a heap with `track="lines"`.
    lines: list[Line]

    def __str__(self) -> str:
        text = f"peak {size(self.peak)}, kept {size(self.kept)}"
        return "\n".join([text, *(f"  {line}" for line in self.lines[:10])])


class Meter:
    """Measures from its making on. It opens no device and imports no library. PyTorch's own peak statistic
    begins anew.

    >>> import gpuheap
    >>> before = gpuheap.set_default_heap(gpuheap.Heap("emulated:1GiB"))
    >>> meter = Meter()
    >>> gpuheap.default_heap().alloc(1000).free()
    >>> print(meter.usage())
    peak 1000 bytes, kept 0 bytes
    >>> _ = gpuheap.set_default_heap(before)
    """

    def __init__(self) -> None:
        self._heap = _heap.peek_default_heap()
        self._region = self._heap._region() if self._heap is not None else None
        self._lines = _lines(self._heap)
        self._torch = _torch_live()
        for device, cuda in _torch_devices():
            cuda.reset_peak_memory_stats(device)

    def usage(self) -> Usage:
        """What was used until now."""
        peak = kept = 0
        heap = _heap.peek_default_heap()
        if self._region is not None:
            before, live, most = self._region.usage()
            peak, kept = most - before, live - before
        if heap is not None and heap is not self._heap:
            # The heap was made or set in the section itself.
            stats = heap.stats()
            peak, kept = peak + stats["live_peak"], kept + stats["live"]
        for device, cuda in _torch_devices():
            before = self._torch.get(device, 0)
            peak += max(cuda.max_memory_allocated(device) - before, 0)
            kept += cuda.memory_allocated(device) - before
        lines = _lines(heap)
        earlier = self._lines if heap is self._heap and self._lines is not None else Snapshot(())
        grown = lines.diff(earlier) if lines is not None else []
        return Usage(peak, max(kept, 0), [line for line in grown if line.bytes > 0])


def live_bytes() -> int:
    """Bytes that the default heap and PyTorch's allocator have live. Opens no device."""
    heap = _heap.peek_default_heap()
    own = heap.stats()["live"] if heap is not None else 0
    return own + sum(_torch_live().values())


def _lines(heap: _heap.Heap | None) -> Snapshot | None:
    return heap.snapshot() if heap is not None and heap.tracks else None


def _torch_live() -> dict[int, int]:
    return {device: cuda.memory_allocated(device) for device, cuda in _torch_devices()}


def _torch_devices() -> list[tuple[int, Any]]:
    """The devices that PyTorch's own allocator is in use on. None if a heap took its place: then it is the
    heap that counts."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    try:
        if cuda is None or not cuda.is_initialized():
            return []
        devices = list(range(cuda.device_count()))
        for device in devices:
            cuda.memory_allocated(device)
    except RuntimeError:
        # An allocator that was plugged in has no such statistics.
        return []
    return [(device, cuda) for device in devices]
