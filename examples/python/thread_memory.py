"""Why is GPU memory still there after my thread ended?

The driver knows no owner of memory but the process's context, so a thread's end frees nothing.
Python frees the thread's variables when it collects them. Memory that the thread left in a list, a
cache or an exception stays. This program shows both, finds the line that holds the memory, and gets
the memory back with a scope for the thread.

    python thread_memory.py                         # on an emulated device
    python thread_memory.py cuda:0

thread_memory_cupy.py, thread_memory_numba.py and thread_memory_pycuda.py show the same with these
libraries.
"""

import sys
import threading

import gpuheap

heap = gpuheap.Heap(sys.argv[1] if len(sys.argv) > 1 else "emulated:1GiB", track="lines")
cache = []


def worker():
    local = heap.alloc(32 << 20)
    cache.append(heap.alloc(64 << 20))
    del local  # as the end of the function does


def on_a_thread(function):
    thread = threading.Thread(target=function, name="loader")
    thread.start()
    thread.join()
    print(f"  the thread ended; live: {heap.stats()['live'] >> 20} MiB")


print("the thread's own variable is freed, and what it left in a list is not")
on_a_thread(worker)
for line in heap.leaks():
    print(f"  {line.bytes >> 20} MiB of line {line.line}")
for held in heap.held():
    print("  held by:", held.holders[0].name.partition(" at ")[0])

print("the list is cleared, and a flush returns the memory to the driver")
cache.clear()
print(
    f"  live: {heap.stats()['live'] >> 20} MiB, kept for the next request: {heap.stats()['reserved'] >> 20} MiB"
)
heap.flush()
print(f"  after heap.flush(): {heap.stats()['reserved'] >> 20} MiB")

print("with @gpuheap.thread_scope, the end of the thread frees it")
on_a_thread(gpuheap.thread_scope(heap=heap)(worker))
print(f"  the list has a freed buffer: {cache[0].freed}")
