"""Allocations that hooks keep by address."""

import threading

import pytest

import gpuheap
from support import in_threads


def test_address_is_freed_once(heap):
    for below in (False, True):
        address = heap._allocate_address(1000, None, below)
        assert heap.stats()["live"] == 1000
        assert heap.leaks()[0].function == "test_address_is_freed_once"
        heap._free_address(address)
        for wrong in (address, 512, 2**64 - 512):
            with pytest.raises(gpuheap.BadInput, match="freed before"):
                heap._free_address(wrong)
    assert heap._allocate_address(0) == 0
    heap._free_address(0)


def test_free_follows_other_streams(heap):
    one, other = heap.stream(), heap.stream()
    address = heap._allocate_address(1000, one)
    heap._address_used_on(address, other)
    heap._free_address(address, other)
    with pytest.raises(gpuheap.BadInput):
        heap._address_used_on(address, other)


def test_out_of_memory_has_its_figures(heap):
    for below in (False, True):
        with pytest.raises(gpuheap.OutOfMemory) as caught:
            heap._allocate_address(1 << 30, None, below)
        assert caught.value.requested == 1 << 30


def test_request_below_foreign_allocator_ignores_scope(heap):
    with heap.scope("load", limit="1 MiB", on_leak="raise") as scope:
        address = heap._allocate_address(2 << 20, None, True)
        with pytest.raises(gpuheap.OutOfMemory, match="load"):
            heap._allocate_address(2 << 20)
    assert scope.own_peak == 0 and heap.stats()["live"] == 2 << 20
    heap._free_address(address)


def test_request_below_foreign_allocator_collects_nothing(heap):
    import gc

    gc.disable()
    try:
        cycle = [heap.alloc(400 << 20)]
        cycle.append(cycle)
        del cycle
        with pytest.raises(gpuheap.OutOfMemory):
            heap._allocate_address(400 << 20, None, True)
        heap._free_address(heap._allocate_address(400 << 20))
    finally:
        gc.enable()
        gc.collect()


def test_foreign_lock_and_interpreter_never_deadlock(
    heap,
):
    """While one thread holds the lock of another allocator (a foreign lock) and requests memory,
    other threads wait for that lock."""
    lock, done = threading.Lock(), []

    def below():
        for _ in range(300):
            with lock:
                try:
                    done.append(heap._allocate_address(300 << 20, None, True))
                except gpuheap.OutOfMemory:
                    pass
            with lock:
                while done:
                    heap._free_address(done.pop())

    in_threads(*[below] * 3)
    while done:
        heap._free_address(done.pop())
