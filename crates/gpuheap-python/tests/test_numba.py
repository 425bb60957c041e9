"""Tests that Numba, from its unmodified wheel, allocates from a heap. Each program runs in a new
process, because Numba's memory manager can be set only once."""

import subprocess
import sys

import pytest

from support import needs_driver

pytest.importorskip("numba.cuda", reason="numba-cuda is not installed")

BEGIN = """
import gc, threading
import numpy as np, gpuheap
from numba import cuda
"""


def run(program, manager="gpuheap.numba", **settings):
    import os

    needs_driver()
    environment = {**os.environ, **settings}
    if manager:
        environment["NUMBA_CUDA_MEMORY_MANAGER"] = manager
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", BEGIN + program],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_arrays_come_from_the_heap():
    run("""
heap = cuda.current_context().memory_manager.heap
array = cuda.to_device(np.arange(1000, dtype=np.float32))
assert heap.stats()["live"] == 4000, heap.stats()
assert array.copy_to_host().tolist() == list(range(1000))
info = cuda.current_context().get_memory_info()
assert 0 < info.free < info.total
pinned = cuda.pinned_array(10)
del array
gc.collect()
assert heap.stats()["live"] == 0
try:
    cuda.device_array(1 << 40, np.uint8)
except gpuheap.OutOfMemory as error:
    assert error.cause == "larger_than_device"
else:
    raise AssertionError("no error")
""")


THREAD = """
def work():
    cuda.device_array(8 << 20, np.uint8)
before = cuda.current_context().get_memory_info().free
cuda.device_array(8 << 20, np.uint8)
thread = threading.Thread(target=work)
thread.start(); thread.join()
gc.collect()
"""


def test_dropped_memory_is_free_immediately():
    run(
        THREAD
        + """
heap = cuda.current_context().memory_manager.heap
assert heap.stats()["live"] == 0, heap.stats()
heap.flush()
assert cuda.current_context().get_memory_info().free >= before
"""
    )


def test_numba_alone_defers_frees():
    run(
        THREAD
        + """
assert cuda.current_context().get_memory_info().free < before
""",
        manager=None,
    )


def test_numbas_error_is_explained():
    run(
        """
try:
    cuda.device_array(1 << 40, np.uint8)
except Exception as error:
    found = gpuheap.explain(error)
assert found.program == "Numba" and not found.from_documentation, found
""",
        manager=None,
    )


def test_program_can_install():
    run(
        """
import gpuheap.numba
heap = gpuheap.Heap("cuda:0", limit="64MiB")
try:
    gpuheap.numba.install(gpuheap.Heap("emulated:1GiB"))
except gpuheap.BadInput as error:
    assert "gpuheap emulate" in str(error)
else:
    raise AssertionError("no error")
gpuheap.numba.install(heap)
array = cuda.device_array(1000, np.uint8)
assert heap.stats()["live"] == 1000
try:
    gpuheap.numba.install(heap)
except gpuheap.BadInput as error:
    assert "already" in str(error)
else:
    raise AssertionError("no error")
""",
        manager=None,
    )


def test_second_install_changes_nothing():
    run(
        """
import gpuheap.numba
heap = gpuheap.Heap("cuda:0", limit="64MiB")
gpuheap.numba.install(heap)
try:
    gpuheap.numba.install(gpuheap.Heap("cuda:0"))
except gpuheap.BadInput as error:
    assert "installed" in str(error)
else:
    raise AssertionError("no error")
array = cuda.device_array(1000, np.uint8)
assert heap.stats()["live"] == 1000
""",
        manager=None,
    )


def test_late_install_is_refused():
    run(
        """
import gpuheap.numba
cuda.current_context()
try:
    gpuheap.numba.install(gpuheap.Heap("cuda:0"))
except gpuheap.BadInput as error:
    assert "NUMBA_CUDA_MEMORY_MANAGER" in str(error)
else:
    raise AssertionError("no error")
""",
        manager=None,
    )


def test_default_heap_serves_numba():
    run(
        """
import os
array = cuda.device_array(1000, np.uint8)
heap = gpuheap.default_heap()
assert cuda.current_context().memory_manager.heap is heap
assert heap.stats()["live"] == 1000 and gpuheap.status().to_dict()["device_total"] > 0
assert heap.limits[0] == 64 << 20, heap.limits
try:
    cuda.device_array(40 << 20, np.uint8), heap.alloc(40 << 20)
except gpuheap.OutOfMemory as error:
    assert error.limit == 64 << 20
else:
    raise AssertionError("the limit was granted twice")
del array
gc.collect()
assert gpuheap.flush().given_back > 0
""",
        GPUHEAP_MEMORY_LIMIT="64MiB",
    )
