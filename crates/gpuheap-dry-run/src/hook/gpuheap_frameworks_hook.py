"""Hook of `gpuheap run --frameworks` in a Python program: records the blocks of CuPy and RMM.

Does nothing until the program imports `cupy` or `rmm`. Prints nothing and raises nothing. PyTorch
needs no hook in Python: the recorder replaces the function with which PyTorch reports blocks.
"""

import contextlib
import ctypes
import functools
import sys
import threading

from gpuheap_import_waiter import Waiter

CUPY = 0
RMM = 1
# Number of frames of this file between the recorder and the framework.
OWN_FRAMES = 1

# Calls of a `PyDLL` keep the interpreter's lock. Releasing it takes longer than the call.
recorder = ctypes.PyDLL(None)
allocated = recorder.gpuheap_run_block_allocated
allocated.argtypes = [
    ctypes.c_uint32,
    ctypes.c_int,
    ctypes.c_uint64,
    ctypes.c_uint64,
    ctypes.c_uint64,
    ctypes.c_uint32,
]
allocated.restype = None
freed = recorder.gpuheap_run_block_freed
freed.argtypes = [ctypes.c_uint32, ctypes.c_uint64, ctypes.c_uint64]
freed.restype = None


def cupy_imported(memory_hook):
    class Recorder(memory_hook.MemoryHook):
        name = "gpuheap"

        def malloc_postprocess(self, device_id, mem_size, mem_ptr, **_):
            if mem_ptr:
                allocated(CUPY, device_id, mem_ptr, mem_size, 0, OWN_FRAMES)

        # Is called before the free, because another thread may get the address afterwards.
        def free_preprocess(self, mem_ptr, **_):
            freed(CUPY, mem_ptr, 0)

    hook = Recorder()
    hook.__enter__()
    run = threading.Thread._bootstrap_inner

    # A hook of CuPy applies to one thread only.
    def run_with_hook(thread):
        hook.__enter__()
        run(thread)

    threading.Thread._bootstrap_inner = run_with_hook


def rmm_imported(rmm):
    # If this version of RMM lacks one of the functions, no block is recorded.
    with contextlib.suppress(AttributeError):
        record_rmm(rmm)


def record_rmm(rmm):
    mr = rmm.mr
    initialize, handle = rmm.rmm._initialize, rmm.pylibrmm.stream.Stream.__cuda_stream__
    resource_of, set_resource = mr.get_per_device_resource, mr.set_per_device_resource
    devices = mr.get_log_filenames
    # These names are local, because blocks are also freed after a module's variables are gone.
    note, forget, framework, skipped = allocated, freed, RMM, OWN_FRAMES

    class Recorder(mr.CallbackMemoryResource):
        """Records the blocks of a memory resource that the program uses."""

        def __init__(self, device, resource):
            def allocate(size, stream):
                address = resource.allocate(size, stream)
                if address:
                    note(framework, device, address, size, handle(stream)[1], skipped)
                return address

            # Calls `forget` before the free, because another thread may get the address afterwards.
            def deallocate(address, size, stream):
                forget(framework, address, handle(stream)[1])
                resource.deallocate(address, size, stream)

            super().__init__(allocate, deallocate)
            self.resource = resource

    def own(resource):
        return resource.resource if isinstance(resource, Recorder) else resource

    def record(device):
        set_resource(device, Recorder(device, own(resource_of(device))))

    def getter(function):
        """Wraps a getter to return the program's resource, not the `Recorder` around it."""
        return functools.wraps(function)(lambda *args, **named: own(function(*args, **named)))

    def setter(function):
        """Wraps a function that gets or sets RMM's memory resources.

        Removes the `Recorder`s before the call, and installs them again after the call. So the
        function sees only the program's own resources.
        """

        @functools.wraps(function)
        def call(*args, **named):
            for device in devices():
                set_resource(device, own(resource_of(device)))
            try:
                return function(*args, **named)
            finally:
                for device in devices():
                    record(device)

        return call

    getters = resource_of, mr.get_current_device_resource
    setters = (
        set_resource,
        mr.set_current_device_resource,
        mr.enable_logging,
        mr.disable_logging,
        mr.get_log_filenames,
        initialize,
    )
    replacements = {one: getter(one) for one in getters} | {one: setter(one) for one in setters}
    modules = [module for name, module in sys.modules.items() if name.split(".")[0] == "rmm"]
    for module in modules:
        for name, value in list(vars(module).items()):
            if callable(value) and value in replacements:
                setattr(module, name, replacements[value])
    # Device 0 has a memory resource from the start. The wrapped setters record other devices.
    record(0)


sys.meta_path.insert(0, Waiter("cupy.cuda.memory_hook", cupy_imported))
sys.meta_path.insert(0, Waiter("rmm", rmm_imported))
