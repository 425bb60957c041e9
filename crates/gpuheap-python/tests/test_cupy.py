"""CuPy's hook, tested with fakes of the classes that it uses, because CuPy itself needs a GPU."""

import gc
import pickle
import sys
import types

import pytest

import gpuheap


class Stream:
    """A stream as in CuPy: the stream lives as long as this object."""

    def __init__(self, inner):
        self.inner = inner

    def __cuda_stream__(self):
        return self.inner.__cuda_stream__()


class UnownedMemory:
    def __init__(self, ptr, size, owner, device_id=-1):
        self.ptr, self.size, self.owner, self.device_id = ptr, size, owner, device_id


class Pointer:
    def __init__(self, mem, offset):
        self.mem, self.ptr = mem, mem.ptr + offset


class OutOfMemoryError(MemoryError):
    """CuPy's out-of-memory error. Its constructor takes three numbers."""

    def __init__(self, size, total, limit=0):
        super().__init__(f"out of memory allocating {size} bytes")


class Pool:
    def malloc(self, nbytes):
        raise AssertionError("CuPy's own pool was used")


@pytest.fixture
def cupy(monkeypatch, driver_heap):
    """The part of CuPy that the hook uses. `state` contains CuPy's settings."""
    state = types.SimpleNamespace(
        allocator=Pool().malloc, pinned=Pool().malloc, device=0, stream=Stream(driver_heap.stream())
    )
    pool, pinned_pool = Pool(), Pool()
    fake = {
        name: types.ModuleType(name)
        for name in (
            "cupy",
            "cupy.cuda",
            "cupy.cuda.device",
            "cupy.cuda.memory",
            "cupy.cuda.pinned_memory",
        )
    }
    cuda = fake["cupy.cuda"]
    cuda.get_current_stream = lambda: state.stream
    cuda.get_allocator = lambda: state.allocator
    cuda.set_allocator = lambda made: setattr(state, "allocator", made)
    cuda.set_pinned_memory_allocator = lambda made: setattr(state, "pinned", made)
    fake["cupy.cuda.device"].get_device_id = lambda: state.device
    memory = fake["cupy.cuda.memory"]
    memory.MemoryPointer, memory.UnownedMemory, memory.OutOfMemoryError = (
        Pointer,
        UnownedMemory,
        OutOfMemoryError,
    )
    fake["cupy.cuda.pinned_memory"].PinnedMemoryPointer = Pointer
    fake["cupy"].cuda = cuda
    fake["cupy"].get_default_memory_pool = lambda: pool
    fake["cupy"].get_default_pinned_memory_pool = lambda: pinned_pool
    for name, module in fake.items():
        monkeypatch.setitem(sys.modules, name, module)
    sys.modules.pop("gpuheap.cupy", None)
    import gpuheap.cupy as hook

    hook._error_class.cache_clear()
    state.hook, state.pools = hook, (pool, pinned_pool)
    yield state
    hook._error_class.cache_clear()


def test_arrays_are_of_the_heap(cupy, driver_heap):
    cupy.hook.install(driver_heap)
    pointer = cupy.allocator(1000)
    # 1000 bytes are rounded to a size of CuPy's own pool.
    assert (pointer.mem.size, pointer.mem.device_id, driver_heap.stats()["live"]) == (1024, 0, 1024)
    assert pointer.mem.owner.stream == cupy.stream.inner.handle
    assert driver_heap.leaks()[0].function == "test_arrays_are_of_the_heap"
    pinned = cupy.pinned(4096)
    assert pinned.ptr and pinned.mem.size == 4096
    del pointer, pinned
    gc.collect()
    assert driver_heap.stats()["live"] == 0


def test_current_stream_lives_while_needed(cupy, driver_heap):
    import weakref

    cupy.hook.install(driver_heap)
    held = weakref.ref(cupy.stream)
    pointer = cupy.allocator(1000)
    cupy.stream = Stream(driver_heap.stream())
    gc.collect()
    assert held() is not None
    del pointer
    driver_heap.flush()
    assert held() is None


def test_out_of_memory_has_both_classes(cupy, driver_heap):
    cupy.hook.install(driver_heap)
    with pytest.raises(OutOfMemoryError) as caught:
        cupy.allocator(1 << 30)
    assert isinstance(caught.value, gpuheap.OutOfMemory)
    assert caught.value.requested == 1 << 30 and "1 GiB" in str(caught.value)
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.requested == 1 << 30


def test_another_device_is_refused(cupy, driver_heap):
    cupy.hook.install(driver_heap)
    cupy.device = 1
    with pytest.raises(gpuheap.BadInput, match="current device is 1.*of device 0"):
        cupy.allocator(1000)


def test_second_install_is_refused(cupy, driver_heap):
    before = cupy.allocator
    cupy.hook.install(driver_heap)
    with pytest.raises(gpuheap.BadInput, match="uninstall"):
        cupy.hook.install(driver_heap)
    kept = cupy.allocator(1000)
    cupy.hook.uninstall()
    assert (cupy.allocator, cupy.pinned) == (before, cupy.pools[1].malloc)
    # `uninstall` leaves an allocator that the program has set since.
    cupy.allocator = before = Pool().malloc
    cupy.hook.uninstall()
    assert cupy.allocator == before
    del kept
    assert driver_heap.stats()["live"] == 0


def test_scope_counts_but_keeps_arrays(cupy, driver_heap):
    cupy.hook.install(driver_heap)
    with driver_heap.scope("load", limit="1 MiB", on_leak="ignore") as scope:
        with pytest.raises(OutOfMemoryError, match="load"):
            cupy.allocator(2 << 20)
        kept = cupy.allocator(1000)
    assert scope.leaked_bytes == 1024 == driver_heap.stats()["live"]
    del kept
