"""Allocates GPU memory through ctypes, in a method that a comprehension calls."""

import ctypes

cuda = ctypes.CDLL("libcuda.so.1")


def check(code):
    assert code == 0, code


class Trainer:
    def step(self, size):
        address = ctypes.c_uint64()
        check(cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)))
        return address


def main():
    context = ctypes.c_void_p()
    check(cuda.cuInit(0))
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    check(cuda.cuCtxSetCurrent(context))
    kept = [Trainer().step(1 << 20) for _ in range(3)]
    check(cuda.cuMemFree_v2(kept[0]))


main()
