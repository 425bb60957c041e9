#!/usr/bin/env python3
"""Times sums by group with gpuheap, CuPy and PyTorch, in one process.

    python benches/python/groups.py [--rows 100000000] [--groups 10,1000,100000,10000000]
        [--turns 7] [--device cuda:0]

Values are float64. Keys are int32, or int64 for functions that need it. Each function of a library
runs once to load its kernels, and its sums are compared with NumPy's. A figure is the median of the
turns, in milliseconds, and includes a wait for the device. In each turn all functions run, one
after the other. Prints a Markdown table. Libraries that are not installed are left out. On an
emulated device gpuheap runs alone.
"""

import argparse
import importlib.util
import statistics
import sys
import time

import numpy

import gpuheap


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--groups", default="10,1000,100000,10000000")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--device", default="cuda:0")
    arguments = parser.parse_args()
    heap = gpuheap.Heap(arguments.device)
    random = numpy.random.default_rng(1)
    values = random.random(arguments.rows)
    print(f"{arguments.rows:,} rows on {heap.device.name}, milliseconds\n")
    header = None
    for groups in map(int, arguments.groups.split(",")):
        keys = random.integers(0, groups, arguments.rows, dtype="int32")
        expected = numpy.bincount(keys, values, groups)
        ways = {**of_gpuheap(heap, values, keys, groups)}
        if not heap.device.emulated:
            ways |= of_cupy(values, keys, groups) | of_torch(values, keys, groups)
        for name, way in ways.items():
            found = way()
            if not numpy.allclose(found(), expected, rtol=1e-9):
                sys.exit(f"{name} has other sums of {groups} groups than NumPy")
            del found
        times = {name: [] for name in ways}
        for _ in range(arguments.turns):
            for name, way in ways.items():
                heap.device.synchronize()
                begin = time.perf_counter()
                made = way()
                heap.device.synchronize()
                times[name].append((time.perf_counter() - begin) * 1e3)
                del made
        if header is None:
            header = ["groups", *ways]
            print("| " + " | ".join(header) + " |")
            print("|" + "---:|" * len(header), flush=True)
        figures = [f"{statistics.median(times[name]):.2f}" for name in ways]
        print(f"| {groups:,} | " + " | ".join(figures) + " |", flush=True)


def of_gpuheap(heap, values, keys, groups):
    """Returns the ways to sum, by name. Each way is a function that sums on the device, and returns
    a function that copies the sums to the host."""
    values, keys = heap.array(values), heap.array(keys)
    codes = keys.astype("uint32")

    def checked():
        sums = values.sum_by_key(keys, groups)
        return sums.to_numpy

    def unchecked():
        # group_by uses this kernel. It skips NaN, and does not wait for the device.
        sums = values._fold("sum", codes, groups)
        return sums.to_numpy

    return {"gpuheap sum_by_key": checked, "gpuheap group_by's": unchecked}


def of_cupy(values, keys, groups):
    if importlib.util.find_spec("cupy") is None:
        return {}
    import cupy

    values, keys = cupy.asarray(values), cupy.asarray(keys)

    def bincount():
        sums = cupy.bincount(keys, values, groups)
        return lambda: cupy.asnumpy(sums)

    def add_at():
        sums = cupy.zeros(groups)
        cupy.add.at(sums, keys, values)
        return lambda: cupy.asnumpy(sums)

    return {"CuPy bincount": bincount, "CuPy add.at": add_at}


def of_torch(values, keys, groups):
    if importlib.util.find_spec("torch") is None:
        return {}
    import torch

    values, keys = torch.from_numpy(values).cuda(), torch.from_numpy(keys).cuda()
    wide = keys.long()

    def index_add():
        sums = torch.zeros(groups, dtype=torch.float64, device="cuda").index_add_(0, keys, values)
        return lambda: sums.cpu().numpy()

    def scatter_add():
        sums = torch.zeros(groups, dtype=torch.float64, device="cuda").scatter_add_(0, wide, values)
        return lambda: sums.cpu().numpy()

    def bincount():
        sums = torch.bincount(keys, values, groups)
        return lambda: sums.cpu().numpy()

    return {
        "PyTorch index_add_": index_add,
        "PyTorch scatter_add_": scatter_add,
        "PyTorch bincount": bincount,
    }


if __name__ == "__main__":
    main()
