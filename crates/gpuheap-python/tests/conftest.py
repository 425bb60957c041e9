"""Fixtures: heaps of an emulated device."""

import pytest

import gpuheap


@pytest.fixture
def heap():
    """A heap that records lines. What a test allocates is free at its end."""
    heap = gpuheap.Heap("emulated:1GiB", limit="512MiB", track="lines")
    yield heap
    assert not heap.leaks(), heap.leaks()
