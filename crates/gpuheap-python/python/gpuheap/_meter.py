"""Measures the GPU memory that a section of a program takes from heaps and PyTorch's own
allocator."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from gpuheap import _heap
from gpuheap._heap import Line, size


class Reading(NamedTuple):
    """Figures of GPU memory since a meter was made, in bytes. Returned by `Meter.read()`."""

    #: Peak of the live bytes, minus the live bytes at the start. With several allocators, this is
    #: the sum of the allocators' peaks.
    peak: int
    #: Live bytes now minus live bytes at the start, at least 0.
    kept: int
    #: Lines that hold more or less memory than at the start, the largest growth first. Counts and
    #: bytes are the differences from the start. Needs a heap with `track="lines"`.
    lines: list[Line]
    #: Peak and kept bytes of each device, keyed by its name.
    devices: dict[str, tuple[int, int]] = {}

    def __str__(self) -> str:
        text = f"peak {size(self.peak)}, kept {size(self.kept)}"
        several = self.devices.items() if len(self.devices) > 1 else ()
        devices = [
            f"  {name}: peak {size(peak)}, kept {size(kept)}" for name, (peak, kept) in several
        ]
        return "\n".join([text, *devices, *(f"  {line}" for line in self.lines[:10])])


class Meter:
    """A measurement of GPU memory that begins when the meter is made. `gpuheap.meter()` and
    `Heap.meter()` return it.

    The meter counts all threads, and all libraries that use the heap. Meters may overlap in time.
    """

    def __init__(self, heap: _heap.Heap | None) -> None:
        self._is_default = heap is None
        heaps = _heap.known_heaps() if heap is None else [heap]
        self._meters = [(each, each._meter()) for each in heaps]
        self._lines = _lines(heaps)
        self._torch = _torch_live() if self._is_default else {}
        for device, cuda in self._torch_devices():
            cuda.reset_peak_memory_stats(device)

    def read(self) -> Reading:
        """Returns the use of GPU memory since the meter was made. The meter keeps measuring."""
        found: dict[str, tuple[int, int]] = {}

        def add(name: str, peak: int, kept: int) -> None:
            most, left = found.get(name, (0, 0))
            found[name] = most + peak, left + kept

        for heap, meter in self._meters:
            before, live, most = meter.read()
            add(heap.device.name, most - before, live - before)
        measured = [heap for heap, _ in self._meters]
        heaps = _heap.known_heaps() if self._is_default else measured
        new = [heap for heap in heaps if heap not in measured]
        for heap in new:
            # The heap was not known when the meter was made, so all of the heap's memory counts.
            stats = heap.stats()
            add(heap.device.name, stats["live_peak"], stats["live"])
        for device, cuda in self._torch_devices():
            before = self._torch.get(device, 0)
            peak = max(cuda.max_memory_allocated(device) - before, 0)
            add(f"cuda:{device}", peak, cuda.memory_allocated(device) - before)
        peak, kept = (sum(each[at] for each in found.values()) for at in range(2))
        earlier = {} if heaps and set(new) == set(heaps) else self._lines
        devices = {name: (peak, max(kept, 0)) for name, (peak, kept) in found.items()}
        return Reading(peak, max(kept, 0), _changes(earlier, _lines(heaps)), devices)

    def _torch_devices(self) -> list[tuple[int, Any]]:
        return torch_devices() if self._is_default else []


def meter() -> Meter:
    """Begins to measure the default heap and PyTorch's own allocator. Opens no device and imports
    no library. Resets PyTorch's own peak statistic.

    >>> import gpuheap
    >>> before = gpuheap.set_default_heap(gpuheap.Heap("emulated:1GiB"))
    >>> meter = gpuheap.meter()
    >>> gpuheap.default_heap().alloc(1000).free()
    >>> print(meter.read())
    peak 1000 bytes, kept 0
    >>> _ = gpuheap.set_default_heap(before)
    """
    return Meter(None)


def live_bytes() -> int:
    """Returns the live bytes of the known heaps and of PyTorch's allocator, added up. Opens no
    device."""
    own = sum(heap.stats()["live"] for heap in _heap.known_heaps())
    return own + sum(_torch_live().values())


def _lines(heaps: list[_heap.Heap]) -> dict[tuple[str, int, str], Line]:
    """Returns the lines that hold memory, keyed by file, line and function. Adds up the memory of
    all heaps."""
    found: dict[tuple[str, int, str], Line] = {}
    for line in (line for heap in heaps if heap.tracks for line in heap.leaks()):
        place = (line.file, line.line, line.function)
        other = found.get(place, Line(*place, 0, 0, ()))
        threads = tuple(dict.fromkeys((*other.threads, *line.threads)))
        count, total = other.allocations + line.allocations, other.bytes + line.bytes
        found[place] = Line(*place, count, total, threads)
    return found


def _changes(
    before: dict[tuple[str, int, str], Line], now: dict[tuple[str, int, str], Line]
) -> list[Line]:
    changes = []
    for place in before.keys() | now.keys():
        old, new = (lines.get(place, Line(*place, 0, 0, ())) for lines in (before, now))
        change = Line(
            *place,
            new.allocations - old.allocations,
            new.bytes - old.bytes,
            new.threads or old.threads,
        )
        if change.allocations or change.bytes:
            changes.append(change)
    return sorted(changes, key=lambda line: (-line.bytes, line.file, line.line))


def _torch_live() -> dict[int, int]:
    return {device: cuda.memory_allocated(device) for device, cuda in torch_devices()}


def torch_devices() -> list[tuple[int, Any]]:
    """Returns the devices on which PyTorch's own allocator is in use. Returns an empty list if a
    heap replaced that allocator, because the heap then counts the memory."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    try:
        if cuda is None or not cuda.is_initialized():
            return []
        devices = list(range(cuda.device_count()))
        for device in devices:
            cuda.memory_allocated(device)
    except RuntimeError:
        # `memory_allocated` fails if PyTorch uses a pluggable allocator, such as gpuheap's.
        return []
    return [(device, cuda) for device in devices]
