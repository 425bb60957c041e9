"""Defines fixtures that are heaps of an emulated device."""

import gc

import pytest

import gpuheap
from support import needs_driver


@pytest.fixture
def heap():
    """A heap that records lines. Its memory is freed at the test's end."""
    heap = gpuheap.Heap("emulated:1GiB", limit="512MiB", track="lines")
    yield heap
    assert not heap.leaks(), heap.leaks()


@pytest.fixture
def driver_heap():
    """A heap on the machine's driver, which is the emulated driver or a GPU's driver. Its memory is
    freed at the test's end."""
    needs_driver()
    heap = gpuheap.Heap("cuda:0", limit="512MiB", track="lines")
    yield heap
    gc.collect()
    assert not heap.leaks(), heap.leaks()
