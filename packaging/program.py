"""Allocates and frees GPU memory with the driver's functions.

A dry run uses this program on a system that has no GPU library for Python.
"""

import ctypes

cuda = ctypes.CDLL("libcuda.so.1")
context, address = ctypes.c_void_p(), ctypes.c_uint64()
for code in [
    cuda.cuInit(0),
    cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0),
    cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(20 << 30)),
    cuda.cuMemFree_v2(address),
]:
    if code:
        raise SystemExit(f"the driver returned error {code}")
