"""Allocates with NVIDIA's cuda-bindings, and prints how many bytes each source line leaves live.

With two arguments, compares the first file, a printed output, with the second file. The second file
has the output of `gpuheap report --at end --json` for the capture of the same run.
"""

import json
import os
import sys

MIB = 1 << 20
left = {}


def take(function, size, *rest):
    code, address = function(size, *rest)
    assert code == 0, code
    return address


def keep(function, size, *rest):
    """Allocates, and counts the bytes for the caller's line."""
    caller = sys._getframe(1)
    site = f"record.py:{caller.f_lineno} in {caller.f_code.co_name}"
    left[site] = left.get(site, 0) + size
    return take(function, size, *rest)


def train(driver):
    for size in (MIB, 2 * MIB + 3):
        keep(driver.cuMemAlloc, size)
    keep(driver.cuMemAllocAsync, 5 * MIB, driver.CUstream(0))


def main():
    from cuda.bindings import driver

    assert driver.cuInit(0)[0] == 0
    context = driver.cuDevicePrimaryCtxRetain(0)[1]
    assert driver.cuCtxSetCurrent(context)[0] == 0
    train(driver)
    freed = take(driver.cuMemAlloc, 7 * MIB)
    assert driver.cuMemFree(freed)[0] == 0
    keep(driver.cuMemAlloc, 11)
    print(json.dumps({"left": left, "freed": 7 * MIB}), flush=True)
    # Exit without the interpreter's shutdown, so that nothing can free the memory.
    os._exit(0)


def compare(written, reported):
    with open(written) as file:
        expected = json.load(file)
    with open(reported) as file:
        (report,) = json.load(file)
    # The first two frames of a stack are `take` and `keep`. The site is the caller of `keep`.
    found = {}
    for stack in report["left_by_stack"]:
        inner, outer, site = stack["frames"][:3]
        assert inner.endswith("in take") and outer.endswith("in keep"), stack
        found[site] = found.get(site, 0) + stack["bytes"]
    assert found == expected["left"], (found, expected["left"])
    total = sum(found.values())
    assert (report["left_live_bytes"], report["allocations"], report["frees"]) == (total, 5, 1)
    assert report["peak_live_bytes"] == 8 * MIB + 3 + expected["freed"]
    print(f"recorded {total} bytes of {len(found)} lines, as the program counted")


if len(sys.argv) == 3:
    compare(*sys.argv[1:])
else:
    main()
