"""How do I get a thread's GPU memory back with PyCUDA, without a free in the right place?

PyCUDA frees an object on the thread that drops it. If the object's context is not current there,
the memory is lost. A heap frees memory on any thread, with or without a context. Two lines change.
pycuda.autoprimaryctx replaces pycuda.autoinit, because a separate context cannot use the heap's
memory. The heap's allocator replaces PyCUDA's.

    python -m gpuheap emulate -- python thread_memory_pycuda.py                 # without a GPU
    python thread_memory_pycuda.py

Needs PyCUDA and NumPy.
"""

import threading
import warnings

import numpy
import pycuda.autoprimaryctx
from pycuda import driver, gpuarray

import gpuheap
import gpuheap.pycuda

context = pycuda.autoprimaryctx.context
heap = gpuheap.Heap("cuda:0", limit="512MiB", track="lines")


def worker(allocator, results):
    context.push()  # for the copies: the heap itself needs no context
    try:
        array = gpuarray.to_gpu(numpy.ones(16 << 20, "float32"), allocator=allocator)
        results.append(float(array[:4].get().sum()))
        if allocator is not driver.mem_alloc:
            print(
                "  inside:",
                heap.leaks()[0].bytes >> 20,
                "MiB of thread",
                threading.current_thread().name,
            )
    finally:
        context.pop()
    # `array` is dropped here, on a thread without a context.


def on_a_thread(allocator):
    before, _ = driver.mem_get_info()
    results = []
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        thread = threading.Thread(target=worker, args=(allocator, results), name="loader")
        thread.start()
        thread.join()
    for warning in warned:
        print("  PyCUDA warns:", warning.message)
    heap.flush()
    print(
        f"  result {results[0]}, left on the device: {before - driver.mem_get_info()[0] >> 20} MiB"
    )


print("before, with PyCUDA's own memory")
on_a_thread(driver.mem_alloc)

print("after, with the heap's")
on_a_thread(gpuheap.pycuda.allocator(heap))
print(f"  live in the heap: {heap.stats()['live']} bytes")
