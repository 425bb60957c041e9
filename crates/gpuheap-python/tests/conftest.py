"""Defines fixtures that are heaps of an emulated device."""

import gc

import pytest

import gpuheap
from support import needs_driver


@pytest.fixture
def heap():
    """A heap that records the Python line of each allocation. The test has to free all memory."""
    heap = gpuheap.Heap("emulated:1GiB", limit="512MiB", track="lines")
    yield heap
    assert not heap.leaks(), heap.leaks()


@pytest.fixture
def driver_heap():
    """A heap on the machine's driver: the emulated driver, or a GPU's driver. The test has to free
    all memory."""
    needs_driver()
    heap = gpuheap.Heap("cuda:0", limit="512MiB", track="lines")
    yield heap
    gc.collect()
    assert not heap.leaks(), heap.leaks()
