"""Fixtures: heaps of an emulated device."""

import gc

import pytest

import gpuheap
from support import needs_driver


@pytest.fixture
def heap():
    """A heap that records lines. The end of a test frees its memory."""
    heap = gpuheap.Heap("emulated:1GiB", limit="512MiB", track="lines")
    yield heap
    assert not heap.leaks(), heap.leaks()


@pytest.fixture
def driver_heap():
    """A heap of the machine's driver: the emulated one, or a GPU's. Its memory is free at the
    end."""
    needs_driver()
    heap = gpuheap.Heap("cuda:0", limit="512MiB", track="lines")
    yield heap
    gc.collect()
    assert not heap.leaks(), heap.leaks()
