"""Why is a thread's GPU memory still taken after the thread ended, with CuPy?

CuPy's pool keeps the memory for the next array of the same size and stream. Other libraries and
processes get it only after free_all_blocks(). A heap serves all threads and libraries of the
process, under a limit.

    python thread_memory_cupy.py

Needs CuPy and a GPU: CuPy brings NVIDIA's runtime, which does not run on the emulated driver. Our
tests run this program against a small fake of CuPy.
"""

import gc
import threading

import cupy

import gpuheap
import gpuheap.cupy


def worker():
    cupy.empty(64 << 20, dtype="uint8")


def on_a_thread():
    thread = threading.Thread(target=worker, name="loader")
    thread.start()
    thread.join()
    gc.collect()


print("before, with CuPy's own pool")
on_a_thread()
pool = cupy.get_default_memory_pool()
print(f"  kept by the pool: {pool.total_bytes() >> 20} MiB")
pool.free_all_blocks()
print(f"  after free_all_blocks(): {pool.total_bytes() >> 20} MiB")

print("after, with the heap")
heap = gpuheap.Heap("cuda:0", limit="512MiB")
gpuheap.cupy.install(heap)
on_a_thread()
print(
    f"  kept by the pool: {pool.total_bytes() >> 20} MiB; live in the heap: {heap.stats()['live']} bytes"
)
print(f"  kept by the heap: {heap.stats()['reserved'] >> 20} MiB")
heap.flush()
print(f"  after flush(): {heap.stats()['reserved'] >> 20} MiB")

print("and when it runs out")
try:
    cupy.empty(1 << 30, dtype="uint8")
except cupy.cuda.memory.OutOfMemoryError as error:
    print(gpuheap.explain(error))
gpuheap.cupy.uninstall()
