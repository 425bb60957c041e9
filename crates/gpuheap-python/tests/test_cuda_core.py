"""Tests that cuda.core, from its unmodified wheel, allocates from a heap."""

import gc

import pytest

import gpuheap

core = pytest.importorskip("cuda.core")
import gpuheap.cuda_core  # noqa: E402


@pytest.fixture
def device(driver_heap):
    device = core.Device(0)
    device.set_current()
    return device


def test_buffer_is_freed_on_close(driver_heap, device):
    resource = gpuheap.cuda_core.resource(driver_heap)
    stream, other = device.create_stream(), device.create_stream()
    buffer = resource.allocate(1000, stream=stream)
    assert (buffer.size, buffer.memory_resource, buffer.device_id) == (1000, resource, 0)
    assert driver_heap.stats()["live"] == 1000
    assert driver_heap.leaks()[0].function == "test_buffer_is_freed_on_close"
    buffer.close(other)
    assert driver_heap.stats()["live"] == 0
    resource.allocate(10, stream=stream)
    gc.collect()
    assert driver_heap.stats()["live"] == 0
    buffer = resource.allocate(10, stream=stream)
    buffer.set_deallocation_stream(other)
    buffer.close()
    assert driver_heap.stats()["live"] == 0


def test_bytes_survive_round_trip(driver_heap, device):
    import numpy

    resource = gpuheap.cuda_core.resource(driver_heap)
    stream = device.create_stream()
    pinned = core.LegacyPinnedMemoryResource()
    source, target = pinned.allocate(4096, stream=stream), pinned.allocate(4096, stream=stream)
    numpy.from_dlpack(source)[:] = 7
    numpy.from_dlpack(target)[:] = 0
    buffer = resource.allocate(4096, stream=stream)
    buffer.copy_from(source, stream=stream)
    buffer.copy_to(target, stream=stream)
    stream.sync()
    assert numpy.from_dlpack(target).tolist() == [7] * 4096
    for each in (buffer, source, target):
        each.close(stream)


def test_install_and_uninstall(driver_heap, device):
    before = device.memory_resource
    installed = gpuheap.cuda_core.install(driver_heap)
    try:
        with pytest.raises(gpuheap.BadInput, match="installed"):
            gpuheap.cuda_core.install(driver_heap)
        stream = device.create_stream()
        buffer = device.allocate(1 << 20, stream=stream)
        assert driver_heap.stats()["live"] == 1 << 20
        with pytest.raises(gpuheap.OutOfMemory) as caught:
            device.allocate(1 << 30, stream=stream)
        assert caught.value.limit == 512 << 20
        buffer.close()
    finally:
        gpuheap.cuda_core.uninstall(installed)
    assert device.memory_resource is before


def test_own_pool_keeps_stream_order(driver_heap, device):
    """A closed buffer's memory is reused without new memory from the driver. All driver calls of a
    reuse are made by the free on a foreign stream. It queries whether the stream is capturing and
    whether earlier frees completed, and records an event."""
    resource = gpuheap.cuda_core.resource(driver_heap)
    stream = device.create_stream()
    for _ in range(3):
        resource.allocate(5000, stream=stream).close()
    before = driver_heap.stats()
    for _ in range(100):
        resource.allocate(5000, stream=stream).close()
    after = driver_heap.stats()
    assert after["reserved"] == before["reserved"]
    assert after["driver_calls"] - before["driver_calls"] <= 100 * 4


def test_inner_emulated_device_is_refused(heap):
    with pytest.raises(gpuheap.BadInput, match="gpuheap emulate"):
        gpuheap.cuda_core.resource(heap)


def test_scope_counts_but_keeps_buffers(driver_heap, device):
    resource, stream = gpuheap.cuda_core.resource(driver_heap), device.create_stream()
    with driver_heap.scope("load", limit="1 MiB", on_leak="ignore") as scope:
        with pytest.raises(gpuheap.OutOfMemory, match="load"):
            resource.allocate(2 << 20, stream=stream)
        kept = resource.allocate(1000, stream=stream)
    assert scope.leaked_bytes == 1000 == driver_heap.stats()["live"]
    assert "local kept of" in str(scope.leaked[0].holders()), scope.report(holders=True)
    kept.close(stream)


def test_unheld_memory_of_scope_is_reported(driver_heap):
    with driver_heap.scope("load", on_leak="ignore") as scope:
        address = driver_heap._allocate_address(1000)
    assert "held by no Python object" in scope.report(holders=True)
    driver_heap._free_address(address)


def test_ended_thread_returns_its_buffers(driver_heap, device):
    import threading

    resource, stream = gpuheap.cuda_core.resource(driver_heap), device.create_stream()

    def work():
        device.set_current()
        kept = [resource.allocate(1 << 20, stream=stream) for _ in range(8)]
        assert len(kept) == 8

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    gc.collect()
    assert driver_heap.stats()["live"] == 0
