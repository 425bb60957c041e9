"""Numba, unmodified, with memory of gpuheap, on the emulated driver."""

import pytest
from hooks import needs, run


@pytest.fixture(autouse=True)
def library():
    needs("numba-cuda", "numpy")


SETUP = """
import numpy, gpuheap.numba
heap = gpuheap.Heap("cuda:0", limit="64MiB", track="lines")
gpuheap.set_default_heap(heap)
live = lambda: heap.stats()["live"]
"""


@pytest.mark.parametrize("way", ["install", "environment"])
def test_arrays_come_from_the_heap(way):
    program = SETUP + """
from numba import cuda
INSTALL
a = cuda.to_device(numpy.arange(1000.0))
assert live() == 8000 and "<string>" in heap.leaks()[0].file
assert (a.copy_to_host() == numpy.arange(1000.0)).all()
stream = cuda.stream()
b = cuda.device_array(1000, stream=stream)
b.copy_to_device(a, stream=stream)
stream.synchronize()
assert (b[10:20].copy_to_host() == numpy.arange(10.0, 20.0)).all()
info = cuda.current_context().get_memory_info()
assert info.free == (64 << 20) - live() and info.total == 1 << 30, info
del a, b
gc.collect()
assert live() == 0, heap.leaks()
cuda.close()
"""
    if way == "install":
        run(program.replace("INSTALL", "gpuheap.numba.install(heap)"))
    else:
        run(program.replace("INSTALL", ""), NUMBA_CUDA_MEMORY_MANAGER="gpuheap.numba")


THREAD = """
from numba import cuda
def work():
    array = cuda.device_array(8 << 20, numpy.uint8)
cuda.current_context()
free = cuda.current_context().get_memory_info().free
thread = threading.Thread(target=work)
thread.start()
thread.join()
gc.collect()
print(free - cuda.current_context().get_memory_info().free)
cuda.close()
"""


def test_memory_of_an_ended_thread_comes_back():
    assert int(run(SETUP + THREAD)) == 8 << 20
    assert int(run(SETUP + "gpuheap.numba.install(heap)" + THREAD)) == 0


def test_install_is_refused_too_late_and_twice():
    program = SETUP + """
from numba import cuda
undo = gpuheap.numba.install(heap)
assert "already" in refused(gpuheap.BadInput, lambda: gpuheap.numba.install(heap))
undo()
cuda.current_context()
assert "NUMBA_CUDA_MEMORY_MANAGER" in refused(gpuheap.BadInput, lambda: gpuheap.numba.install(heap))
cuda.close()
"""
    run(program)


def test_errors_are_those_of_gpuheap():
    program = SETUP + """
from numba import cuda
gpuheap.numba.install(heap)
try:
    cuda.device_array(1 << 27, numpy.uint8)
except MemoryError as error:
    assert isinstance(error, gpuheap.OutOfMemory) and error.limit == 64 << 20
else:
    raise AssertionError
with cuda.gpus[1]:
    text = refused(gpuheap.BadInput, lambda: cuda.device_array(10))
    assert "device 1" in text, text
cuda.close()
"""
    run(program)
