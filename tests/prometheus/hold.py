"""Allocates 500 MiB of GPU memory, and holds it until stdin closes."""

import ctypes
import sys

cuda = ctypes.CDLL("libcuda.so.1")
context, address = ctypes.c_void_p(), ctypes.c_uint64()
for code in [
    cuda.cuInit(0),
    cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
    cuda.cuCtxSetCurrent(context),
    cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(500 << 20)),
]:
    if code:
        raise SystemExit(f"the driver returned error {code}")
print("ready", flush=True)
sys.stdin.read()
