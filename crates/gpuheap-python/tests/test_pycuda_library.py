"""Runs PyCUDA, built from its source, on the emulated driver. Each program runs in a new process,
because a context of PyCUDA lasts until the end of the process."""

import subprocess
import sys

import pytest

from support import needs_driver

pytest.importorskip("pycuda.driver", reason="PyCUDA is not installed")

BEGIN = """
import gc, threading, warnings
import numpy as np, gpuheap, gpuheap.pycuda
def on_a_thread(function):
    thread = threading.Thread(target=function)
    thread.start(); thread.join()
    gc.collect()
"""
PRIMARY = "import pycuda.autoprimaryctx\nfrom pycuda import driver, gpuarray\n" + BEGIN
OWN = "import pycuda.autoinit\nfrom pycuda import driver\n" + BEGIN


def run(program):
    needs_driver()
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300
    )


def passes(program):
    """Runs a program and checks that it prints nothing. The emulated driver's checks print each
    error."""
    done = run(program)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_arrays_are_of_the_heap():
    passes(
        PRIMARY
        + """
heap = gpuheap.Heap("cuda:0", limit="512MiB", track="lines")
allocator = gpuheap.pycuda.allocator(heap)
array = gpuarray.to_gpu(np.arange(10, dtype="f4"), allocator=allocator)
assert array.get().tolist() == list(range(10))
assert heap.stats()["live"] == 40
pointer = allocator(4096)
driver.memset_d8(int(pointer), 7, 4096)
there = np.empty(4096, "u1")
driver.memcpy_dtoh(there, pointer)
assert (there == 7).all()
pointer.free()
del array
gc.collect()
assert heap.stats()["live"] == 0, heap.leaks()
"""
    )


# Runs a thread that pushes its context and allocates 64 MiB. Python's collector frees the memory.
THREAD = """
def work():
    context.push()
    memory = allocate(64 << 20)
    context.pop()
before = driver.mem_get_info()[0]
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    on_a_thread(work)
"""


def test_hook_frees_a_threads_memory():
    passes(
        PRIMARY
        + """
context = pycuda.autoprimaryctx.context
heap = gpuheap.Heap("cuda:0", limit="512MiB")
allocate = gpuheap.pycuda.allocator(heap)
"""
        + THREAD
        + """
assert not caught, caught[0].message
assert heap.stats()["live"] == 0
heap.flush()
assert driver.mem_get_info()[0] == before
"""
    )


def test_hook_frees_without_context():
    passes(
        PRIMARY
        + """
heap = gpuheap.Heap("cuda:0", limit="512MiB")
allocate = gpuheap.pycuda.allocator(heap)
on_a_thread(lambda: allocate(64 << 20))
assert heap.stats()["live"] == 0
"""
    )


def test_pycuda_alone_loses_threads_memory():
    passes(
        PRIMARY
        + "context, allocate = pycuda.autoprimaryctx.context, driver.mem_alloc"
        + THREAD
        + """
assert driver.mem_get_info()[0] == before - (64 << 20)
assert "freed on a thread" in gpuheap.explain(str(caught[0].message)).cause
"""
    )


def test_separate_context_is_refused():
    passes(
        OWN
        + """
try:
    gpuheap.pycuda.allocator(gpuheap.Heap("cuda:0"))
except gpuheap.BadInput as error:
    assert "import pycuda.autoprimaryctx in the place of pycuda.autoinit" in str(error)
else:
    raise AssertionError("no error")
"""
    )


def test_out_of_memory_is_gpuheaps():
    passes(
        PRIMARY
        + """
allocator = gpuheap.pycuda.allocator(gpuheap.Heap("cuda:0", limit="64MiB"))
try:
    gpuarray.empty(1 << 30, "u1", allocator=allocator)
except gpuheap.OutOfMemory as error:
    assert error.requested == 1 << 30
else:
    raise AssertionError("no error")
"""
    )
