"""Tests of `Heap.meter`, and of `gpuheap.meter`, a meter of the default heap."""

import gpuheap


def test_lines_have_growth_and_decrease():
    heap = gpuheap.Heap("emulated:1GiB", track="lines")
    before = [heap.alloc(100), heap.alloc(20)]
    outer, meter = heap.meter(), heap.meter()
    assert outer.read()[:3] == (0, 0, [])
    kept = heap.alloc(50)
    before.pop(0).free()
    reading = meter.read()
    assert (reading.peak, reading.kept) == (50, 0)
    assert [(line.allocations, line.bytes) for line in reading.lines] == [(1, 50), (-1, -100)]
    grown, shrunk = str(reading).splitlines()[1:]
    assert grown.startswith("  50 bytes in 1 allocation, ")
    assert shrunk.startswith("  -100 bytes in -1 allocations, ")
    kept.free()
    assert (meter.read().peak, outer.read().peak) == (50, 50)


def test_meter_without_lines_has_figures():
    heap = gpuheap.Heap("emulated:1GiB", track="off")
    meter = heap.meter()
    heap.alloc(3000).free()
    kept = heap.alloc(1000)
    assert meter.read()[:3] == (3000, 1000, [])
    kept.free()


def test_default_meter_follows_replaced_heap():
    before = gpuheap.set_default_heap(None)
    try:
        meter = gpuheap.meter()
        assert meter.read()[:3] == (0, 0, [])
        gpuheap.set_default_heap(gpuheap.Heap("emulated:1GiB", track="lines"))
        kept = gpuheap.default_heap().alloc(1000)
        reading = meter.read()
        assert (reading.peak, reading.kept, reading.lines[0].bytes) == (1000, 1000, 1000)
        kept.free()
    finally:
        gpuheap.set_default_heap(before)
