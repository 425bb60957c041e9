"""Times pairs (allocate, free) called from nested Python frames. Argument: pairs.c as a library."""

import ctypes
import sys

lib = ctypes.PyDLL(sys.argv[1])
lib.pairs.restype = ctypes.c_double
lib.pairs.argtypes = [ctypes.c_int, ctypes.c_size_t, ctypes.c_int]


def below(frames, function):
    return function() if frames == 0 else below(frames - 1, function)


def measure():
    lib.pairs(2000, 1 << 20, 1)
    times = [lib.pairs(5000, 1 << 20, 1) for _ in range(10)]
    mean = sum(times) / len(times)
    print(f"async pair 1 MiB below Python: mean {mean:.0f} ns, least {min(times):.0f} ns")


if lib.prepare(1):
    sys.exit("no GPU")
below(8, measure)
