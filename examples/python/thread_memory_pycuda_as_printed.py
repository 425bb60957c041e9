"""Why does `mem_alloc` fail in a thread with PyCUDA, and why does its memory stay when the thread
ends?

The usual program imports pycuda.autoinit, calls mem_alloc in a worker, and ends with mem_free. It
fails in three places, one after the other. For each failure, gpuheap.explain names the cause and
the line to change. The last worker shows the correct code with PyCUDA alone. With a heap, as in
thread_memory_pycuda.py, memory can be freed on any thread.

    python -m gpuheap emulate -- python thread_memory_pycuda_as_printed.py      # without a GPU
    python thread_memory_pycuda_as_printed.py

Needs PyCUDA.
"""

import threading
import warnings

import pycuda.autoinit
from pycuda import driver

import gpuheap

SIZE = 64 << 20


def as_printed():
    memory = driver.mem_alloc(SIZE)
    driver.mem_free(memory)


def with_the_context_pushed():
    pycuda.autoinit.context.push()
    try:
        memory = driver.mem_alloc(SIZE)
        driver.mem_free(memory)
    finally:
        pycuda.autoinit.context.pop()


def without_mem_free():
    pycuda.autoinit.context.push()
    try:
        memory = driver.mem_alloc(SIZE)
        driver.memset_d8(memory, 0, SIZE)
    finally:
        pycuda.autoinit.context.pop()
    # `memory` is dropped here, on a thread without a context.


def whole():
    pycuda.autoinit.context.push()
    try:
        memory = driver.mem_alloc(SIZE)
        driver.memset_d8(memory, 0, SIZE)
        memory.free()
    finally:
        pycuda.autoinit.context.pop()


def on_a_thread(worker):
    """Runs a worker on a thread. Prints its failure, and the memory that stays on the device."""
    print(f"-- {worker.__name__}")
    failures = []

    def run():
        try:
            worker()
        except Exception as error:
            # Its traceback would keep the worker's memory.
            failures.append(error.with_traceback(None))

    before, _ = driver.mem_get_info()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    for failure in failures + [warning.message for warning in warned]:
        print(f"{type(failure).__name__}: {failure}")
        print(gpuheap.explain(failure))
    left = before - driver.mem_get_info()[0]
    print(f"left on the device: {left >> 20} MiB\n")


for worker in as_printed, with_the_context_pushed, without_mem_free, whole:
    on_a_thread(worker)
