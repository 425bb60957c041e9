"""Fakes of the CuPy classes to which a CuPy pointer refers."""

import ctypes
import weakref


class CFunctionAllocatorMemory:
    """Memory of C functions, as in CuPy."""

    def __init__(self, size, param, malloc_func, free_func, device_id):
        malloc = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)(
            malloc_func
        )
        free = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)(free_func)
        self.size, self.device_id = size, device_id
        self.ptr = malloc(param, size, device_id) if size > 0 else 0
        if self.ptr:
            weakref.finalize(self, free, param, self.ptr, device_id)


class Pointer:
    def __init__(self, mem, offset):
        self.mem, self.ptr = mem, mem.ptr + offset
