"""Times how long RMM's resources and gpuheap's native resource take to allocate and free.

    pip install rmm-cu13 cython nvidia-cuda-runtime nvidia-cuda-crt, and the wheel of gpuheap
    python benches/python/rmm_pairs.py [--turns 5] [--count 100000]

Needs a GPU, or an emulated driver for gpuheap's row alone (`--only gpuheap`). Prints a Markdown
table of nanoseconds per pair: the median, the minimum and the maximum of the turns. In each turn
every resource runs, one after the other.
"""

import argparse
import statistics
import tempfile
import time
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import rmm

import gpuheap
import gpuheap.rmm
from gpuheap._rmm_build import compile_against_rmm

SIZES = (256, 1 << 20)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--only", choices=("gpuheap",))
    arguments = parser.parse_args()
    gpuheap.rmm.build()
    heap = gpuheap.Heap("cuda:0", limit="40%")
    resources = {"gpuheap": gpuheap.rmm.resource(heap)}
    if arguments.only is None:
        plain = rmm.mr.CudaMemoryResource()
        resources["rmm pool"] = rmm.mr.PoolMemoryResource(plain, 1 << 30, 2 << 30)
        resources["rmm async"] = rmm.mr.CudaAsyncMemoryResource()
    pairs = loaded().pairs
    print("| resource | bytes | ns a pair | least | most |\n|---|---:|---:|---:|---:|")
    times = {(name, size): [] for name in resources for size in SIZES}
    for _ in range(arguments.turns):
        for (name, size), found in times.items():
            pairs(resources[name], size, 1000)
            begin = time.perf_counter_ns()
            pairs(resources[name], size, arguments.count)
            found.append((time.perf_counter_ns() - begin) / arguments.count)
    for (name, size), found in times.items():
        middle = statistics.median(found)
        print(f"| {name} | {size:,} | {middle:.0f} | {min(found):.0f} | {max(found):.0f} |")


def loaded():
    """Compiles and loads the loop of pairs."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "rmm_pairs.so")
        compile_against_rmm(Path(__file__).with_suffix(".pyx"), made)
        loader = ExtensionFileLoader("rmm_pairs", str(made))
        module = module_from_spec(spec_from_loader("rmm_pairs", loader))
        loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
