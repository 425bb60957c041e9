"""Tests PyCUDA's hook with a fake of PyCUDA's driver module."""

import ctypes
import gc
import sys
import threading
import types

import pytest

import gpuheap


class Context:
    """A context, known by its handle. `Context.current` is the thread's context."""

    current = None

    def __init__(self, handle):
        self.handle, self.references = handle, 0

    @staticmethod
    def get_current():
        return Context.current

    def detach(self):
        self.references -= 1


PRIMARY = Context(1)


class Device:
    def __init__(self, ordinal):
        self.ordinal = ordinal

    def retain_primary_context(self):
        PRIMARY.references += 1
        return PRIMARY


@pytest.fixture
def hook(monkeypatch):
    driver = types.ModuleType("pycuda.driver")
    driver.Context, driver.Device, driver.PointerHolderBase = Context, Device, object
    package = types.ModuleType("pycuda")
    package.driver = driver
    monkeypatch.setitem(sys.modules, "pycuda", package)
    monkeypatch.setitem(sys.modules, "pycuda.driver", driver)
    monkeypatch.setattr(Context, "current", PRIMARY)
    import gpuheap.pycuda

    yield gpuheap.pycuda
    assert PRIMARY.references == 0


def test_pointer_owns_its_memory(hook, driver_heap):
    pointer = hook.allocator(driver_heap)(1000)
    assert int(pointer) == pointer.get_pointer() == pointer.buffer.ptr
    assert driver_heap.leaks()[0].function == "test_pointer_owns_its_memory"
    pointer.free()
    assert driver_heap.stats()["live"] == 0


def test_thread_without_context_frees(hook, driver_heap):
    allocate = hook.allocator(driver_heap)

    def work():
        Context.current = None
        allocate(64 << 20)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    gc.collect()
    assert driver_heap.stats()["live"] == 0


def test_holders_see_through_pointer(hook, driver_heap):
    class Array:
        pass

    Array.kept = array = Array()
    array.gpudata = hook.allocator(driver_heap)(1000)
    # The real PyCUDA's pointers are objects of Boost.Python, and Python's collector does not track
    # those. Untrack this pointer too, so that no search from its buffer finds the array.
    ctypes.pythonapi.PyObject_GC_UnTrack(ctypes.py_object(array.gpudata))
    (held,) = driver_heap.held()
    assert "Array.kept.gpudata" in str(held) and "builtins.dict" not in str(held), held
    del Array.kept, array


def test_separate_context_is_refused(hook, driver_heap):
    Context.current = Context(2)
    with pytest.raises(gpuheap.BadInput, match="pycuda.autoprimaryctx"):
        hook.allocator(driver_heap)
    Context.current = None
    with pytest.raises(gpuheap.BadInput, match="no context"):
        hook.allocator(driver_heap)


def test_out_of_memory_is_gpuheaps(hook, driver_heap):
    with pytest.raises(gpuheap.OutOfMemory):
        hook.allocator(driver_heap)(1 << 30)


def test_inner_emulated_device_is_refused(hook, heap):
    with pytest.raises(gpuheap.BadInput, match="gpuheap emulate"):
        hook.allocator(heap)
