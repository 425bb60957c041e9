"""Hook of `gpuheap run --frameworks` in a Python program: records the blocks of CuPy's pool.

Does nothing until the program imports `cupy`. Prints nothing and raises nothing. PyTorch needs no
hook in Python: the recorder replaces the function with which PyTorch reports blocks.
"""

import ctypes
import sys
import threading

from gpuheap_import_waiter import Waiter

# Frames of this file between the recorder and the framework.
OWN_FRAMES = 1

# Calls of a `PyDLL` keep the interpreter's lock. Releasing it takes longer than the call.
recorder = ctypes.PyDLL(None)
allocated = recorder.gpuheap_run_cupy_block_allocated
allocated.argtypes = [
    ctypes.c_int,
    ctypes.c_uint64,
    ctypes.c_uint64,
    ctypes.c_uint64,
    ctypes.c_uint32,
]
allocated.restype = None
freed = recorder.gpuheap_run_cupy_block_freed
freed.argtypes = [ctypes.c_uint64, ctypes.c_uint64]
freed.restype = None


def cupy_imported(memory_hook):
    class Recorder(memory_hook.MemoryHook):
        name = "gpuheap"

        def malloc_postprocess(self, device_id, mem_size, mem_ptr, **_):
            if mem_ptr:
                allocated(device_id, mem_ptr, mem_size, 0, OWN_FRAMES)

        # Before the free: afterwards, another thread may get the address.
        def free_preprocess(self, mem_ptr, **_):
            freed(mem_ptr, 0)

    hook = Recorder()
    hook.__enter__()
    run = threading.Thread._bootstrap_inner

    # CuPy's hooks belong to a thread.
    def run_with_hook(thread):
        hook.__enter__()
        run(thread)

    threading.Thread._bootstrap_inner = run_with_hook


sys.meta_path.insert(0, Waiter("cupy.cuda.memory_hook", cupy_imported))
