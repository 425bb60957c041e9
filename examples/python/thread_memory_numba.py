"""Why is a thread's GPU memory still taken after the thread ended, with Numba?

Numba keeps dropped arrays in a list. It frees them when the list has ten arrays or a fifth of the
device's memory, or when memory runs out. A heap gets the memory back immediately, and reuses it for
the next request of any thread. A flush gives it to the driver. A process can set Numba's memory
manager only once, so one process runs without the heap and another with it.

    python -m gpuheap emulate -- python thread_memory_numba.py                  # without a GPU
    python thread_memory_numba.py

Needs numba-cuda.
"""

import gc
import os
import subprocess
import sys
import threading


def worker():
    from numba import cuda

    cuda.device_array(64 << 20, "uint8")


def measure():
    """Prints how much of a thread's 64 MiB is in use after its end, and how much after a flush."""
    from numba import cuda

    context = cuda.current_context()
    before = context.get_memory_info().free
    thread = threading.Thread(target=worker, name="loader")
    thread.start()
    thread.join()
    gc.collect()
    heap = getattr(context.memory_manager, "heap", None)
    if heap is not None:
        print(f"  live in the heap: {heap.stats()['live']} bytes")
        heap.flush()
    left = before - context.get_memory_info().free
    print(f"  left on the device: {left >> 20} MiB")


if sys.argv[1:] == ["measure"]:
    measure()
else:
    again = [sys.executable, __file__, "measure"]
    print("before, with Numba's own memory", flush=True)
    subprocess.run(again, check=True)
    print("after, with NUMBA_CUDA_MEMORY_MANAGER=gpuheap.numba", flush=True)
    subprocess.run(
        again, check=True, env={**os.environ, "NUMBA_CUDA_MEMORY_MANAGER": "gpuheap.numba"}
    )
