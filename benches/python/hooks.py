"""Compares each hook of the Python package with its library's own allocator, in a Markdown table.

    python benches/python/hooks.py [--only NAME,...] [--device cuda:0] [--rounds 3] [--seconds 120]

A row is a library and a size. Its columns are the nanoseconds of a pair (allocate and free) with
the library's own allocator, the nanoseconds with the hook, their ratio, and the target. The last
column has the nanoseconds with a hook that tracks memory by line. In the row of the heap itself, a
Python object that does nothing takes the place of the own allocator. A figure is the median of all
rounds. In each round, each of the three (own allocator, hook, hook with lines) has a process that
measures all sizes. The last lines name the skipped libraries: not installed, failed, or slower than
--seconds.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys

SIZES = {"1 KiB": 1 << 10, "1 MiB": 1 << 20}

# Each process runs this code, then a library's program. `measure` first runs some pairs (allocate
# and free) without timing them.
BEGIN = """
import json, sys, time
from threading import Thread
WAY, DEVICE, SIZES = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
HOOK = WAY != "own"
TRACK = "lines" if WAY == "lines" else "off"
import gpuheap
def measure(pair, calls, threads=1):
    def work(calls=calls):
        for _ in range(calls):
            pair()
    work(calls // 10 + 3)
    rounds = []
    for _ in range(5):
        others = [Thread(target=work) for _ in range(threads - 1)]
        begin = time.perf_counter_ns()
        for other in others:
            other.start()
        work()
        for other in others:
            other.join()
        rounds.append((time.perf_counter_ns() - begin) / (calls * threads))
    return sorted(rounds)[2]
def told(pairs, calls=5_000, threads=1):
    figures = {name: measure(pair, calls) for name, pair in pairs.items()}
    if threads > 1:
        figures |= {f"{name}, {threads} threads": measure(pairs[name], calls, threads) for name in SIZES}
    print(json.dumps(figures))
"""

# Maps a library to the module that shows whether it is installed, the ways to measure it, their
# targets, and the program to run. The library's own allocator is always measured too. A target is
# in nanoseconds for a pair (allocate and free).
LIBRARIES = {
    "heap": (
        "gpuheap",
        ["hook", "lines"],
        {"hook": 200},
        """
if HOOK:
    heap = gpuheap.Heap(DEVICE, track=TRACK)
else:
    # Lower bound of the time: an object that does nothing, made by one method and freed by another.
    class Nothing:
        __slots__ = ()
        def alloc(self, size): return Nothing()
        def free(self): pass
    heap = Nothing()
told({name: lambda size=size: heap.alloc(size).free() for name, size in SIZES.items()})
""",
    ),
    "cuda.core": (
        "cuda.core",
        ["hook"],
        {"hook": 1400},
        """
from cuda.core import Device
device = Device(0); device.set_current()
stream = device.create_stream()
if HOOK:
    import gpuheap.cuda_core
    gpuheap.cuda_core.install(gpuheap.Heap(DEVICE))
resource = device.memory_resource
told({name: lambda size=size: resource.allocate(size, stream=stream).close() for name, size in SIZES.items()})
""",
    ),
    "Numba": (
        "numba_cuda",
        ["hook"],
        {"hook": 2500},
        """
from numba import cuda
if HOOK:
    import gpuheap.numba
    gpuheap.numba.install(gpuheap.Heap(DEVICE))
context = cuda.current_context()
told({name: lambda size=size: context.memalloc(size) for name, size in SIZES.items()})
""",
    ),
    "CuPy": (
        "cupy",
        ["hook", "lines"],
        {},
        """
import cupy
if HOOK:
    import gpuheap.cupy
    gpuheap.cupy.install(gpuheap.Heap(DEVICE, track=TRACK))
pairs = {name: lambda size=size: cupy.empty(size, "u1") for name, size in SIZES.items()}
if WAY == "hook":
    # Times parts of the hook alone. The hook cannot be faster than their sum: CuPy makes both
    # objects for all memory that it did not allocate.
    from cupy.cuda.memory import MemoryPointer, UnownedMemory
    block = gpuheap.Heap(DEVICE).alloc(1024)
    memory = UnownedMemory(block.ptr, 1024, block, 0)
    pairs["part: UnownedMemory"] = lambda: UnownedMemory(block.ptr, 1024, block, 0)
    pairs["part: MemoryPointer"] = lambda: MemoryPointer(memory, 0)
    pairs["part: the heap's pair"] = lambda heap=gpuheap.Heap(DEVICE): heap.alloc(1024).free()
told(pairs, threads=8)
""",
    ),
    "RMM": (
        "rmm",
        ["hook"],
        {"hook": 500},
        """
import rmm, rmm.mr
if HOOK:
    import gpuheap.rmm
    resource = gpuheap.rmm.install(gpuheap.Heap(DEVICE))
else:
    resource = rmm.mr.PoolMemoryResource(rmm.mr.CudaMemoryResource(), initial_pool_size=1 << 28)
pairs = {name: lambda size=size: resource.deallocate(resource.allocate(size), size) for name, size in SIZES.items()}
if HOOK:
    # Times callbacks that do nothing, and the calls that read a stream. The hook cannot be faster
    # than their sum.
    from rmm.pylibrmm.stream import DEFAULT_STREAM
    empty = rmm.mr.CallbackMemoryResource(lambda nbytes, stream: 4096, lambda address, nbytes, stream: None)
    pairs["part: empty callbacks"] = lambda: empty.deallocate(empty.allocate(1024), 1024)
    pairs["part: __cuda_stream__, twice"] = lambda: (DEFAULT_STREAM.__cuda_stream__(), DEFAULT_STREAM.__cuda_stream__())
told(pairs)
""",
    ),
    "PyTorch": (
        "torch",
        ["hook"],
        {},
        """
import torch
if HOOK:
    import gpuheap.torch
    gpuheap.torch.install()
told({name: lambda size=size: torch.empty(size, dtype=torch.uint8, device="cuda") for name, size in SIZES.items()})
""",
    ),
    "PyTorch training step": (
        "torch",
        ["hook", "lines"],
        {},
        """
import torch
if HOOK:
    import gpuheap.torch
    gpuheap.torch.install(track=TRACK)
torch.manual_seed(0)
layer = torch.nn.TransformerEncoderLayer(256, 4, batch_first=True).cuda()
model = torch.nn.TransformerEncoder(layer, 4).cuda()
optimiser = torch.optim.AdamW(model.parameters())
data = torch.randn(16, 128, 256, device="cuda")
def step():
    optimiser.zero_grad()
    model(data).square().mean().backward()
    optimiser.step()
    torch.cuda.synchronize()
told({"step": step}, calls=20)
""",
    ),
}


def main() -> None:
    options = parser().parse_args()
    print(
        f"gpuheap on {options.device}, Python {sys.version.split()[0]}, {options.rounds} rounds\n"
    )
    print("| library | what | own | hook | ratio | target | by line |")
    print("|---|---|---|---|---|---|---|", flush=True)
    notes = []
    for name in options.only or LIBRARIES:
        module, ways, targets, program = LIBRARIES[name]
        if not is_there(module):
            notes.append(f"{name}: {module} is not installed")
            continue
        try:
            print_rows(name, targets, figures(program, ["own", *ways], options))
        except Failed as failed:
            notes.append(f"{name}: {failed}")
    print(*["", *notes], sep="\n")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--only", type=names, help=f"which of {', '.join(LIBRARIES)}")
    made.add_argument("--device", default="cuda:0")
    made.add_argument("--rounds", type=int, default=3)
    made.add_argument("--seconds", type=float, default=120, help="bound on one process")
    return made


def names(text: str) -> list[str]:
    unknown = [name for name in text.split(",") if name not in LIBRARIES]
    if unknown:
        raise argparse.ArgumentTypeError(
            f"there is no {unknown[0]!r}; there are {', '.join(LIBRARIES)}"
        )
    return text.split(",")


def is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


class Failed(Exception):
    """A process printed no figures. The message is the process's output."""


def figures(
    program: str, ways: list[str], options: argparse.Namespace
) -> dict[str, dict[str, float]]:
    """Runs a program once per round and way (own, hook, lines). Returns medians by row and way."""
    found: dict[str, dict[str, list[float]]] = {}
    for _ in range(options.rounds):
        for way in ways:
            for row, figure in measured(program, way, options).items():
                found.setdefault(row, {}).setdefault(way, []).append(figure)
    return {
        row: {way: statistics.median(of) for way, of in by.items()} for row, by in found.items()
    }


def measured(program: str, way: str, options: argparse.Namespace) -> dict[str, float]:
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-c",
        BEGIN + program,
        way,
        options.device,
        json.dumps(SIZES),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=options.seconds)
    except subprocess.TimeoutExpired:
        raise Failed(f"{way}: no figures after {options.seconds} s") from None
    if done.returncode:
        raise Failed(f"{way}: exit code {done.returncode}: {done.stderr.strip()[-400:]}")
    return json.loads(done.stdout.splitlines()[-1])


def print_rows(name: str, targets: dict[str, int], rows: dict[str, dict[str, float]]) -> None:
    for what, by in rows.items():
        own, hook, lines = (by.get(way) for way in ("own", "hook", "lines"))
        ratio = f"{hook / own:.2f}" if own and hook else ""
        target = nanoseconds(targets.get("hook"))
        cells = [name, what, nanoseconds(own), nanoseconds(hook), ratio, target, nanoseconds(lines)]
        print("|", " | ".join(cells), "|", flush=True)


def nanoseconds(figure: float | None) -> str:
    return "" if figure is None else f"{figure:,.0f}"


if __name__ == "__main__":
    main()
