"""Tests RMM's real callback resource, which needs no CUDA runtime."""

import gc
import sys

import pytest

import gpuheap

rmm = pytest.importorskip("rmm", reason="rmm is not installed")
from rmm.pylibrmm.stream import Stream  # noqa: E402

import gpuheap.rmm  # noqa: E402

if not hasattr(Stream, "__cuda_stream__"):
    pytest.skip(f"RMM {rmm.__version__} has no Stream.__cuda_stream__", allow_module_level=True)


def test_resource_allocates_and_frees(heap):
    resource = gpuheap.rmm.resource(heap)
    address = resource.allocate(1000)
    assert heap.stats()["live"] == 1000
    assert heap.leaks()[0].function == "test_resource_allocates_and_frees"
    resource.deallocate(address, 1000)
    assert heap.stats()["live"] == 0


def test_heap_gets_stream_numbers(heap):
    """RMM makes a new stream object for each call, and the stream outlives the object. If the heap
    held the object, it would treat the object's end as the stream's end."""
    seen = []

    class Spy:
        def _allocate_address(self, nbytes, stream, below, library):
            seen.append((stream, below))
            return heap._allocate_address(nbytes, stream, below, library)

        def _free_address(self, address, stream):
            seen.append(stream)
            heap._free_address(address, stream)

    stream = heap.stream()
    resource = gpuheap.rmm.resource(Spy())
    resource.deallocate(resource.allocate(1000, Stream(stream)), 1000, Stream(stream))
    assert seen == [(stream.handle, True), stream.handle]
    assert heap.stats()["live"] == 0


def test_out_of_memory_is_memory_error(heap):
    with pytest.raises(MemoryError):
        gpuheap.rmm.resource(heap).allocate(1 << 30)


def test_adaptor_wraps_the_resource(heap):
    limited = rmm.mr.LimitingResourceAdaptor(gpuheap.rmm.resource(heap), 1 << 20)
    address = limited.allocate(1000)
    assert heap.stats()["live"] == limited.get_allocated_bytes() - 24 == 1000
    with pytest.raises(MemoryError):
        limited.allocate(2 << 20)
    limited.deallocate(address, 1000)


def test_adaptors_figures_are_read(driver_heap, monkeypatch):
    tracked = rmm.mr.TrackingResourceAdaptor(gpuheap.rmm.resource(driver_heap), capture_stacks=True)
    counted = rmm.mr.StatisticsResourceAdaptor(tracked)
    limited = rmm.mr.LimitingResourceAdaptor(counted, 1 << 20)
    monkeypatch.setattr(rmm.mr, "get_per_device_resource", lambda _: limited)
    address = limited.allocate(1000)
    limited.deallocate(limited.allocate(2000), 2000)
    status = driver_heap.status()
    assert str(status).splitlines()[-3:] == [
        "RMM's LimitingResourceAdaptor: 1 KiB of its limit of 1 MiB",
        "RMM's StatisticsResourceAdaptor: 1000 bytes in 1 allocations, at most 2.93 KiB; in all 2 "
        "allocations of 2.93 KiB",
        "RMM's TrackingResourceAdaptor: 1000 bytes outstanding",
    ]
    assert [one["current_bytes"] for one in status.rmm] == [1024, 1000, 1000]
    [held] = driver_heap.held()
    assert held.address == address and [one.kind for one in held.holders] == ["library"], held
    limited.deallocate(address, 1000)


def test_rmm_that_cannot_allocate_is_refused(driver_heap, monkeypatch):
    class Broken:
        def __init__(self, size):
            raise RuntimeError("cudaErrorSymbolNotFound")

    monkeypatch.setattr(rmm, "DeviceBuffer", Broken)
    before = rmm.mr.get_per_device_resource(0)
    with pytest.raises(
        gpuheap.BadInput, match="RMM cannot allocate here .cudaErrorSymbolNotFound."
    ):
        gpuheap.rmm.install(driver_heap)
    assert rmm.mr.get_per_device_resource(0) is before


def test_second_install_is_refused(heap, driver_heap, monkeypatch):
    # Skips the check, because under the emulated driver RMM finds no CUDA runtime.
    monkeypatch.setattr(gpuheap.rmm, "_check_runs", lambda _: None)
    before = rmm.mr.get_per_device_resource(0)
    with pytest.raises(gpuheap.BadInput, match="RMM needs a real GPU"):
        gpuheap.rmm.install(heap)
    installed = gpuheap.rmm.install(driver_heap)
    try:
        assert rmm.mr.get_per_device_resource(0) is installed
        with pytest.raises(gpuheap.BadInput, match="uninstall"):
            gpuheap.rmm.install(driver_heap)
    finally:
        gpuheap.rmm.uninstall()
    assert rmm.mr.get_per_device_resource(0) is before
    gpuheap.rmm.uninstall()


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """RMM's native memory resource, compiled into an empty cache folder."""
    pytest.importorskip("Cython", reason="Cython is not installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield gpuheap.rmm.build()


def test_build_compiles_once(built, monkeypatch):
    monkeypatch.setenv("CXX", "/nosuch/compiler")
    assert gpuheap.rmm.build() == built
    assert list(built.parent.iterdir()) == [built]


def test_native_resource_allocates_and_frees(built, driver_heap):
    resource = gpuheap.rmm.resource(driver_heap)
    assert type(resource).__module__ == "gpuheap_rmm_native"
    stream = driver_heap.stream()
    counted = rmm.mr.StatisticsResourceAdaptor(resource)
    address = counted.allocate(1000, Stream(stream))
    assert driver_heap.stats()["live"] == counted.allocation_counts.current_bytes == 1000
    assert driver_heap.leaks()[0].function == "test_native_resource_allocates_and_frees"
    counted.deallocate(address, 1000, Stream(stream))
    assert driver_heap.stats()["live"] == 0


def test_native_resource_reports_the_limit(built, driver_heap):
    with pytest.raises(MemoryError, match="1 GiB requested"):
        gpuheap.rmm.resource(driver_heap).allocate(1 << 30)


def test_native_resources_are_replaced(built):
    """Regression test: destroying an object dropped a reference to its class, and later objects
    crashed."""
    other = gpuheap.Heap("cuda:0")
    heap = gpuheap.Heap("cuda:0")
    resource = gpuheap.rmm.resource(heap)
    references = sys.getrefcount(type(resource))
    for _ in range(100):
        resource.deallocate(resource.allocate(1 << 20), 1 << 20)
        rmm.mr.set_per_device_resource(0, resource)
        resource = gpuheap.rmm.resource(heap)
    assert abs(sys.getrefcount(type(resource)) - references) < 10
    used = other.status().to_dict()["device_used"]
    rmm.mr.set_per_device_resource(0, rmm.mr.CudaMemoryResource())
    del resource, heap
    gc.collect()
    # The last resource kept the heap alive. Its end returned the heap's cached memory.
    assert other.status().to_dict()["device_used"] < used


def test_missing_compiler_is_named(tmp_path, monkeypatch):
    pytest.importorskip("Cython", reason="Cython is not installed")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", "/nosuch/compiler")
    with pytest.raises(gpuheap.BadInput, match="/nosuch/compiler cannot be run"):
        gpuheap.rmm.build()
    assert not list(tmp_path.iterdir())


def test_file_others_can_write_is_unused(built):
    from gpuheap import _rmm_build

    _rmm_build._loaded.cache_clear()
    built.chmod(0o666)
    with pytest.warns(UserWarning, match="others can write"):
        assert _rmm_build.native() is None
    built.chmod(0o644)
    _rmm_build._loaded.cache_clear()
