"""CuPy's hook, tested with fakes of the classes that it uses, because CuPy itself needs a GPU."""

import ctypes
import gc
import pickle
import sys
import types
import weakref

import pytest
from fakes.cupy_memory import CFunctionAllocatorMemory, Pointer

import gpuheap


class Stream:
    """A fake of CuPy's stream class. The stream lives as long as this object."""

    def __init__(self, inner):
        self.inner = inner

    def __cuda_stream__(self):
        return self.inner.__cuda_stream__()


def c_function(signature, function):
    """Returns a capsule of Cython's C interface. `function` has to outlive the capsule."""
    make = ctypes.pythonapi.PyCapsule_New
    make.argtypes, make.restype = (
        (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p),
        ctypes.py_object,
    )
    return make(ctypes.cast(function, ctypes.c_void_p), signature, None)


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
            "cupy.cuda.stream",
        )
    }
    cuda = fake["cupy.cuda"]
    fake["cupy.cuda.stream"].get_current_stream = lambda: state.stream
    cuda.get_allocator = lambda: state.allocator
    cuda.set_allocator = lambda made: setattr(state, "allocator", made)
    cuda.set_pinned_memory_allocator = lambda made: setattr(state, "pinned", made)
    fake["cupy.cuda.device"].get_device_id = lambda: state.device
    memory = fake["cupy.cuda.memory"]
    memory.MemoryPointer, memory.CFunctionAllocatorMemory, memory.OutOfMemoryError = (
        Pointer,
        CFunctionAllocatorMemory,
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
    assert driver_heap.leaks()[0].function == "test_arrays_are_of_the_heap"
    pinned = cupy.pinned(4096)
    assert pinned.ptr and pinned.mem.size == 4096
    del pointer, pinned
    gc.collect()
    assert driver_heap.stats()["live"] == 0


def test_current_stream_lives_while_needed(cupy, driver_heap):
    cupy.hook.install(driver_heap)
    held = weakref.ref(cupy.stream)
    pointer = cupy.allocator(1000)
    cupy.stream = Stream(driver_heap.stream())
    gc.collect()
    assert held() is not None
    del pointer
    driver_heap.flush()
    assert held() is None


def test_c_functions_name_device_and_stream(cupy, driver_heap):
    modules = sys.modules
    answers = {"device": 0, "stream": 0}
    device = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int)(lambda _: answers["device"])
    stream = ctypes.PYFUNCTYPE(ctypes.c_ssize_t)(lambda: answers["stream"])
    modules["cupy.cuda.device"].__pyx_capi__ = {
        "get_device_id": c_function(b"int (int __pyx_skip_dispatch)", device)
    }
    modules["cupy.cuda.stream"].__pyx_capi__ = {
        "get_current_stream_ptr": c_function(b"intptr_t (void)", stream)
    }
    cupy.hook.install(driver_heap)
    # The default stream needs no object of CuPy.
    cupy.stream = None
    kept = cupy.allocator(1000)
    answers["stream"] = 17
    cupy.stream = held = Stream(driver_heap.stream())
    count = sys.getrefcount(held)
    other = cupy.allocator(1000)
    # The heap keeps the stream's object.
    assert driver_heap.stats()["live"] == 2048 and sys.getrefcount(held) > count
    answers["device"] = 1
    with pytest.raises(gpuheap.BadInput, match="current device is 1"):
        cupy.allocator(1000)
    del kept, other
    assert driver_heap.stats()["live"] == 0


def test_unknown_signature_is_not_called(cupy, driver_heap):
    sys.modules["cupy.cuda.device"].__pyx_capi__ = {
        "get_device_id": c_function(b"int (void)", ctypes.pythonapi.abort)
    }
    cupy.hook.install(driver_heap)
    assert cupy.allocator(1000).mem.device_id == 0


@pytest.mark.parametrize("takes", [False, True])
def test_failed_object_leaves_no_memory(cupy, driver_heap, monkeypatch, takes):
    class Failing(CFunctionAllocatorMemory):
        def __init__(self, *arguments):
            if takes:
                super().__init__(*arguments)
            raise RuntimeError("no object")

    monkeypatch.setattr(sys.modules["cupy.cuda.memory"], "CFunctionAllocatorMemory", Failing)
    cupy.hook.install(driver_heap)
    with pytest.raises(RuntimeError, match="no object") as caught:
        cupy.allocator(1000)
    del caught
    gc.collect()
    assert driver_heap.stats()["live"] == 0


def test_empty_arrays_take_no_memory(cupy, driver_heap):
    cupy.hook.install(driver_heap)
    assert cupy.allocator(0).ptr == 0 and driver_heap.stats()["allocations"] == 0


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
    # `uninstall` keeps an allocator that the program set after `install`.
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
