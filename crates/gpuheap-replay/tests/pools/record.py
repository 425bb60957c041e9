#!/usr/bin/env python3
"""Records RMM's resources and CuPy's pool under random programs, for the test `pools`.

    python3 record.py FOLDER [--seconds 50] [--ops 3000] [--seed 1] [--only NAME]

Needs one GPU, RMM for the files of RMM, and CuPy for the file of CuPy. If a library is missing, the
script leaves out the files of that library, and prints a line. A separate process writes each file:
FOLDER/NAME.csv.gz for pool, arena, binning, async, cuda and cupy. A file holds several programs.
Each begins with a line `# {...}` of JSON (model, settings, device memory, versions). Then it has
one row for each operation:

* `a`: a request for `bytes` on `stream`, met if `ok` is 1. `f`: the block `id` is freed on
  `stream`, not always the stream of its request. `e`: CuPy's `free_all_blocks`.
* `reserved`: bytes that the resource holds from its upstream after the operation. Counted by a
  `StatisticsResourceAdaptor` below the resource, or by CuPy's pool; -1 if not counted.
* `taken`: decrease in bytes of the device's free memory (cuMemGetInfo) since the resource was made.

Copy the files into crates/gpuheap-replay/tests/data/pools, and add their names to the test.
"""

import argparse
import ctypes
import gzip
import importlib
import importlib.util
import json
import os
import random
import subprocess
import sys
import time

MIB = 1 << 20
COLUMNS = ("op", "id", "bytes", "stream", "ok", "reserved", "taken")

# File, gpuheap's name of the model, bytes that the upstream resource has (0: the whole device),
# number of streams, target of live bytes in MiB.
PROGRAMS = [
    ("pool", "rmm:pool:initial_pool_size:0", 0, 1, 1500),
    ("pool", "rmm:pool:initial_pool_size:268435456", 0, 2, 1500),
    ("pool", "rmm:pool:initial_pool_size:67108864,maximum_pool_size:1610612736", 0, 2, 1500),
    ("pool", "rmm:pool:initial_pool_size:134217728", 1800 * MIB, 2, 1500),
    ("pool", "rmm:pool:initial_pool_size:134217728", 0, 4, 1500),
    ("arena", "rmm:arena:arena_size:2147483648", 0, 1, 1900),
    ("arena", "rmm:arena:arena_size:2147483648", 0, 3, 1600),
    ("binning", "rmm:binning:min_size_exponent:18,max_size_exponent:22", 0, 1, 1500),
    ("binning", "rmm:binning:min_size_exponent:12,max_size_exponent:16", 0, 2, 1500),
    ("async", "rmm:async", 0, 1, 1500),
    ("async", "rmm:async", 0, 2, 1500),
    ("cuda", "cuda", 0, 1, 1500),
    ("cupy", "cupy", 0, 1, 1500),
    ("cupy", "cupy", 0, 3, 1500),
    ("cupy", "cupy:limit:1610612736", 0, 2, 1500),
]


class Driver:
    """Access to the driver: free and total device memory, and a wait."""

    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")

    def memory(self):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        result = self.cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
        if result != 0:
            raise RuntimeError(f"cuMemGetInfo gave {result}")
        return free.value, total.value

    def wait(self):
        self.cuda.cuCtxSynchronize()


def settings_of(model):
    """Returns the settings in `name:a:1,b:2` as a dictionary."""
    text = model.removeprefix("rmm:").partition(":")[2]
    return {pair.split(":")[0]: int(pair.split(":")[1]) for pair in text.split(",") if pair}


class Rmm:
    """One of RMM's resources. If it has an upstream, an adaptor between them counts bytes."""

    def __init__(self, model, upstream_bytes, streams):
        import rmm
        import rmm.mr

        for path in ("rmm.pylibrmm.stream", "rmm._cuda.stream"):
            try:
                stream_type = importlib.import_module(path).Stream
                break
            except ImportError:
                continue
        self.version = f"rmm {rmm.__version__}"
        self.streams = [stream_type() for _ in range(streams)]
        settings = settings_of(model)
        kind = model.removeprefix("rmm:").partition(":")[0]
        self.counted = None
        if kind == "cuda":
            self.resource = rmm.mr.CudaMemoryResource()
        elif kind == "async":
            self.resource = rmm.mr.CudaAsyncMemoryResource()
        else:
            upstream = rmm.mr.CudaMemoryResource()
            if upstream_bytes:
                upstream = rmm.mr.LimitingResourceAdaptor(upstream, upstream_bytes)
            self.counted = rmm.mr.StatisticsResourceAdaptor(upstream)
            if kind == "pool":
                self.resource = rmm.mr.PoolMemoryResource(
                    self.counted,
                    initial_pool_size=settings["initial_pool_size"],
                    maximum_pool_size=settings.get("maximum_pool_size"),
                )
            elif kind == "arena":
                self.resource = rmm.mr.ArenaMemoryResource(self.counted, settings["arena_size"])
            else:
                self.resource = rmm.mr.BinningMemoryResource(
                    self.counted, settings["min_size_exponent"], settings["max_size_exponent"]
                )
        # Pool and arena resources keep free blocks for each stream. So the program frees blocks on
        # other streams too than the streams that allocated them.
        self.frees_elsewhere = kind in ("pool", "arena")
        self.settles = kind == "async"

    def allocate(self, size, stream):
        return self.resource.allocate(size, self.streams[stream])

    def free(self, pointer, size, stream):
        self.resource.deallocate(pointer, size, self.streams[stream])

    def reserved(self):
        if self.counted is None:
            return -1
        counts = self.counted.allocation_counts
        return counts["current_bytes"] if isinstance(counts, dict) else counts.current_bytes

    clear = None


class CuPy:
    """CuPy's pool."""

    def __init__(self, model, _upstream_bytes, streams):
        import cupy

        self.version = f"cupy {cupy.__version__}"
        self.streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(streams)]
        self.pool = cupy.cuda.MemoryPool()
        limit = settings_of(model).get("limit")
        if limit:
            self.pool.set_limit(size=limit)
        self.failure = cupy.cuda.memory.OutOfMemoryError
        self.frees_elsewhere = False
        self.settles = False

    def allocate(self, size, stream):
        with self.streams[stream]:
            try:
                return self.pool.malloc(size)
            except self.failure as error:
                raise MemoryError from error

    def free(self, pointer, size, stream):
        # The last reference to the pointer frees the block when it is deleted.
        del pointer

    def reserved(self):
        return self.pool.total_bytes()

    def clear(self):
        self.pool.free_all_blocks()


def size(rng, popular):
    kind = rng.random()
    if kind < 0.35:
        return rng.choice(popular)
    if kind < 0.60:
        return int(2 ** rng.uniform(0, 20))
    if kind < 0.85:
        return int(rng.uniform(1 * MIB, 8 * MIB))
    if kind < 0.98:
        return int(rng.uniform(8 * MIB, 60 * MIB))
    return int(rng.uniform(60 * MIB, 200 * MIB))


def play(driver, file, number, program, ops, seconds, seed):
    """Runs a random program and writes its rows."""
    name, model, upstream_bytes, streams, target_mib = program
    kind = CuPy if name == "cupy" else Rmm
    # The first allocation initialises the driver. The driver then takes memory for itself.
    warm = kind("cupy" if name == "cupy" else "cuda", 0, streams)
    pointers = [(warm.allocate(MIB, stream), stream) for stream in range(streams)]
    for index, (pointer, stream) in enumerate(pointers):
        pointers[index] = None
        warm.free(pointer, MIB, stream)
        del pointer
    if warm.clear:
        warm.clear()
    driver.wait()
    free_before, total = driver.memory()
    own = kind(model, upstream_bytes, streams)
    rng = random.Random(f"{seed} {name} {number}")
    popular = [
        int(
            rng.choice([600, 4096, 70000, 300000, MIB, 3 * MIB, 12 * MIB, 33 * MIB])
            * rng.uniform(1, 1.3)
        )
        for _ in range(24)
    ]
    head = {
        "name": name,
        "number": number,
        "model": model,
        "upstream_bytes": upstream_bytes,
        "streams": streams,
        "device_memory": total,
        "version": own.version,
        "seed": seed,
    }
    file.write("# " + json.dumps(head) + "\n" + ",".join(COLUMNS) + "\n")
    live, live_bytes, next_number, rows, failures = {}, 0, 0, 0, 0
    start = time.monotonic()

    def row(op, number, size_, stream, ok):
        taken = free_before - driver.memory()[0]
        file.write(f"{op},{number},{size_},{stream},{int(ok)},{own.reserved()},{taken}\n")

    while rows < ops and time.monotonic() - start < seconds:
        # The target varies, so that memory grows, shrinks and grows again.
        wanted = target_mib * MIB * (0.3, 1.0, 0.6, 1.05)[rows // 300 % 4]
        if own.clear and rng.random() < 0.002:
            own.clear()
            row("e", 0, 0, 0, True)
        elif live and rng.random() < (0.35 if live_bytes < wanted else 0.75):
            numbers = list(live)
            freed = rng.choice(numbers) if rng.random() < 0.7 else numbers[-1]
            pointer, size_, stream = live.pop(freed)
            if own.frees_elsewhere and rng.random() < 0.1:
                stream = rng.randrange(streams)
            own.free(pointer, size_, stream)
            del pointer
            if own.settles:
                driver.wait()
            live_bytes -= size_
            row("f", freed, size_, stream, True)
        else:
            size_, stream = max(1, size(rng, popular)), rng.randrange(streams)
            next_number += 1
            ok = True
            try:
                live[next_number] = (own.allocate(size_, stream), size_, stream)
                live_bytes += size_
            except MemoryError:
                ok = False
                failures += 1
            row("a", next_number, size_, stream, ok)
        rows += 1
    for pointer, size_, stream in live.values():
        own.free(pointer, size_, stream)
        del pointer
    live.clear()
    driver.wait()
    print(f"{name} {number}: {model}, {rows} operations, {failures} failed", flush=True)


def child(name, arguments):
    programs = [program for program in PROGRAMS if program[0] == name]
    driver = Driver()
    path = os.path.join(arguments.folder, name + ".csv.gz")
    with gzip.open(path, "wt", compresslevel=9) as file:
        for number, program in enumerate(programs):
            play(
                driver,
                file,
                number,
                program,
                arguments.ops,
                arguments.seconds / len(programs),
                arguments.seed,
            )
    print(f"{name}: {os.path.getsize(path)} bytes", flush=True)


def main():
    parser = argparse.ArgumentParser(description="records RMM's and CuPy's pools")
    parser.add_argument("folder")
    parser.add_argument("--seconds", type=float, default=50, help="for all files together")
    parser.add_argument("--ops", type=int, default=3000, help="operations of one program")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", help="the name of one file")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    os.makedirs(arguments.folder, exist_ok=True)
    names = [
        name
        for name in dict.fromkeys(program[0] for program in PROGRAMS)
        if arguments.only in (None, name)
    ]
    if arguments.child:
        child(names[0], arguments)
        return 0
    deadline = time.monotonic() + arguments.seconds
    failures = 0
    for index, name in enumerate(names):
        module = "cupy" if name == "cupy" else "rmm"
        if importlib.util.find_spec(module) is None:
            print(f"{name}: left out, {module} is not installed", flush=True)
            continue
        left = deadline - time.monotonic()
        # The child process needs 3 s of its share of the time to import the library.
        share = max(2, left / (len(names) - index) - 3)
        command = [
            sys.executable,
            os.path.abspath(__file__),
            arguments.folder,
            "--child",
            "--only",
            name,
            "--seconds",
            str(share),
            "--ops",
            str(arguments.ops),
            "--seed",
            str(arguments.seed),
        ]
        try:
            code = subprocess.run(command, timeout=share + 30).returncode
        except subprocess.TimeoutExpired:
            code = "timeout"
        if code != 0:
            failures += 1
            print(f"{name}: failed ({code})", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
