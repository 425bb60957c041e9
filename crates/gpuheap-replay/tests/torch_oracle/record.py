#!/usr/bin/env python3
"""Records PyTorch's own CUDA allocator under random programs, for the test `oracle`.

    python3 record.py --out FOLDER [--seconds 120] [--ops 6000] [--seed 1] [--only NAME]

Needs PyTorch with CUDA and one GPU. Every program runs in a separate process, because PyTorch
reads PYTORCH_CUDA_ALLOC_CONF once. Each process writes FOLDER/NAME.csv.gz with:

* a line `# {...}` of JSON: settings, version, device memory, fraction, stream handles;
* a header and one row for each operation, with the allocator's statistics after the operation;
* rows whose op is `S`: the segments that were taken and given back, in order, with addresses.

Operations: `a` torch.empty on a stream (in a MemPool if `pool` is not 0), `f` del, `u`
record_stream, `h` holds a stream, `r` releases that stream, `e` empty_cache. A held stream waits
for a value in pinned memory. So the program, and not the device's speed, decides when a free is
completed. After every free of a block with recorded streams, the streams that are not held are
synchronised. So the free is completed before the next `a`.

The suite replays the files that are in crates/gpuheap-replay/tests/data/oracle.
"""

import argparse
import ctypes
import gzip
import json
import os
import random
import subprocess
import sys
import threading
import time

MIB = 1 << 20

# Name, PYTORCH_CUDA_ALLOC_CONF, limit in MiB (0 for none), whether the program makes streams wait
# (operation `h`) and calls record_stream, and whether it has MemPools.
PROGRAMS = [
    ("default", "", 0, True, False),
    ("expandable", "expandable_segments:True", 0, True, False),
    ("split64", "max_split_size_mb:64", 0, True, False),
    ("round4", "roundup_power2_divisions:4", 0, True, False),
    ("round_list", "roundup_power2_divisions:[4:1,16:8,64:2,>:4]", 0, False, False),
    ("exp_round4", "expandable_segments:True,roundup_power2_divisions:4", 0, True, False),
    ("non_split", "max_split_size_mb:40,max_non_split_rounding_mb:60", 0, False, False),
    ("limit", "", 3000, True, False),
    ("limit_expandable", "expandable_segments:True", 3000, True, False),
    ("limit_split32", "max_split_size_mb:32", 3000, True, False),
    ("gc60", "garbage_collection_threshold:0.6", 4000, True, False),
    ("gc80_split48", "garbage_collection_threshold:0.8,max_split_size_mb:48", 3600, True, False),
    (
        "gc70_expandable",
        "garbage_collection_threshold:0.7,expandable_segments:True",
        3400,
        True,
        False,
    ),
    ("pools", "", 0, False, True),
    ("pools_expandable", "expandable_segments:True", 0, False, True),
]

COLUMNS = [
    "op",
    "id",
    "bytes",
    "stream",
    "pool",
    "ok",
    "addr",
    "allocated",
    "reserved",
    "active",
    "inactive_split",
    "segments",
    "retries",
    "ooms",
]


class Held:
    """Holds streams with cuStreamWaitValue32, if the driver has that call."""

    def __init__(self, torch, streams):
        self.flags = torch.zeros(len(streams) * 16, dtype=torch.int32, pin_memory=True)
        self.streams = streams
        self.held = set()
        self.generation = 0
        try:
            self.call = ctypes.CDLL("libcuda.so.1").cuStreamWaitValue32_v2
        except (OSError, AttributeError):
            self.call = None

    def hold(self, index):
        if self.call is None or index in self.held:
            return False
        self.generation += 1
        address = self.flags.data_ptr() + index * 64
        result = self.call(
            ctypes.c_void_p(self.streams[index].cuda_stream),
            ctypes.c_uint64(address),
            ctypes.c_uint32(self.generation),
            ctypes.c_uint(0),
        )
        if result != 0:
            self.call = None
            return False
        self.held.add(index)
        return True

    def release(self, index):
        self.flags[index * 16] = self.generation
        self.held.discard(index)
        self.streams[index].synchronize()

    def release_all(self):
        for index in sorted(self.held):
            self.flags[index * 16] = self.generation

    def settle(self):
        for index, stream in enumerate(self.streams):
            if index not in self.held:
                stream.synchronize()


class Recorder:
    def __init__(self, torch):
        self.torch = torch
        self.rows = []

    def row(self, op, number, size, stream, pool, ok, address):
        stats = self.torch._C._cuda_memoryStats(0)
        current = lambda name: stats[name]["all"]["current"]
        self.rows.append(
            (
                op,
                number,
                size,
                stream,
                pool,
                int(ok),
                address,
                current("allocated_bytes"),
                current("reserved_bytes"),
                current("active_bytes"),
                current("inactive_split_bytes"),
                current("segment"),
                stats["num_alloc_retries"],
                stats["num_ooms"],
            )
        )


def size(rng, popular):
    kind = rng.random()
    if kind < 0.35:
        return rng.choice(popular)
    if kind < 0.60:
        return int(2 ** rng.uniform(0, 20))
    if kind < 0.80:
        return int(rng.uniform(1 * MIB, 10 * MIB))
    if kind < 0.97:
        return int(rng.uniform(10 * MIB, 90 * MIB))
    return int(rng.uniform(90 * MIB, 260 * MIB))


def play(name, settings, limit_mib, uses, pools, ops, seconds, seed, out):
    import torch

    device = torch.device("cuda:0")
    torch.cuda.init()
    torch.cuda.set_device(device)
    total = torch.cuda.get_device_properties(device).total_memory
    fraction = None
    if limit_mib:
        fraction = limit_mib * MIB / torch.cuda.mem_get_info()[1]
        torch.cuda.set_per_process_memory_fraction(fraction)
    streams = [torch.cuda.default_stream()] + [torch.cuda.Stream() for _ in range(2)]
    held = Held(torch, streams)
    torch.cuda.memory._record_memory_history(enabled="all", context=None, max_entries=10_000_000)
    mem_pools = [torch.cuda.MemPool() for _ in range(2)] if pools else []
    rng = random.Random(f"{seed} {name}")
    popular = [
        int(
            rng.choice([600, 4096, 70000, MIB, 3 * MIB, 12 * MIB, 20 * MIB, 33 * MIB, 64 * MIB])
            * rng.uniform(1, 1.3)
        )
        for _ in range(24)
    ]
    target = (2400 if limit_mib else 4000) * MIB
    recorder = Recorder(torch)
    live, used, live_bytes, next_number = {}, set(), 0, 0
    spoiled = []
    beat = [time.monotonic()]

    def watch():
        # Releases all streams after 8 s, because a call that waits for a held stream never returns.
        while True:
            time.sleep(1)
            if time.monotonic() - beat[0] > 8:
                spoiled.append(True)
                held.release_all()

    threading.Thread(target=watch, daemon=True).start()
    start = time.monotonic()
    while len(recorder.rows) < ops and time.monotonic() - start < seconds and not spoiled:
        beat[0] = time.monotonic()
        # The wanted live bytes vary, so that memory grows, shrinks and grows again.
        phase = (len(recorder.rows) // 400) % 4
        wanted = target * (0.3, 1.0, 0.6, 1.05)[phase]
        choice = rng.random()
        if uses and choice < 0.02 and not limit_mib:
            index = rng.randrange(1, len(streams))
            if index in held.held:
                held.release(index)
                recorder.row("r", 0, 0, index, 0, True, 0)
            elif held.hold(index):
                recorder.row("h", 0, 0, index, 0, True, 0)
        elif uses and choice < 0.08 and live:
            number = rng.choice(list(live))
            tensor, size_, own = live[number]
            index = rng.randrange(len(streams))
            tensor.record_stream(streams[index])
            if index != own:
                used.add(number)
            del tensor
            recorder.row("u", number, 0, index, 0, True, 0)
        elif choice < 0.0825:
            for index in sorted(held.held):
                held.release(index)
                recorder.row("r", 0, 0, index, 0, True, 0)
            torch.cuda.empty_cache()
            recorder.row("e", 0, 0, 0, 0, True, 0)
        elif live and rng.random() < (0.35 if live_bytes < wanted else 0.75):
            numbers = list(live)
            number = rng.choice(numbers) if rng.random() < 0.7 else numbers[-1]
            tensor, size_, own = live.pop(number)
            live_bytes -= size_
            del tensor
            if number in used:
                used.discard(number)
                held.settle()
            recorder.row("f", number, 0, own, 0, True, 0)
        else:
            wanted_size = max(1, size(rng, popular))
            index = rng.choice((0, 0, 1, 2))
            pool = rng.choice((0, 1, 2)) if mem_pools else 0
            if mem_pools:
                # Each pool caches memory for each stream separately. The maximum size keeps the
                # memory of all caches low.
                wanted_size = min(wanted_size, 64 * MIB)
            next_number += 1
            ok, address = True, 0
            try:
                with torch.cuda.stream(streams[index]):
                    if pool:
                        with torch.cuda.use_mem_pool(mem_pools[pool - 1]):
                            tensor = torch.empty(wanted_size, dtype=torch.uint8, device=device)
                    else:
                        tensor = torch.empty(wanted_size, dtype=torch.uint8, device=device)
                address = tensor.data_ptr()
                live[next_number] = (tensor, wanted_size, index)
                live_bytes += wanted_size
                del tensor
            except torch.OutOfMemoryError:
                ok = False
            recorder.row("a", next_number, wanted_size, index, pool, ok, address)
    for index in sorted(held.held):
        held.release(index)
    rows = recorder.rows[:-1] if spoiled else recorder.rows
    events = torch.cuda.memory._snapshot()["device_traces"][0]
    head = {
        "name": name,
        "settings": settings,
        "torch": torch.__version__,
        "seed": seed,
        "device_memory": torch.cuda.mem_get_info()[1],
        "total_memory": total,
        "fraction": fraction,
        "streams": [stream.cuda_stream for stream in streams],
        "device": torch.cuda.get_device_name(0),
        "spoiled": bool(spoiled),
    }
    path = os.path.join(out, name + ".csv.gz")
    with gzip.open(path, "wt", compresslevel=9) as file:
        file.write("# " + json.dumps(head) + "\n" + ",".join(COLUMNS) + "\n")
        for row in rows:
            file.write(",".join(map(str, row)) + "\n")
        for event in events:
            action = event["action"]
            if action.startswith("segment_"):
                file.write(
                    f"S,{action[8:]},{event['size']},{event['stream']},0,1,{event['addr']}\n"
                )
    print(
        f"{name}: {len(rows)} operations, {os.path.getsize(path)} bytes"
        + (", SPOILED: a stream that was held up was waited for" if spoiled else ""),
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(
        description="records PyTorch's allocator under random programs"
    )
    parser.add_argument("--out", required=True)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--ops", type=int, default=6000, help="operations of one program")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", help="the name of one program")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    os.makedirs(arguments.out, exist_ok=True)
    chosen = [program for program in PROGRAMS if arguments.only in (None, program[0])]
    if arguments.child:
        name, settings, limit, uses, pools = chosen[0]
        play(
            name,
            settings,
            limit,
            uses,
            pools,
            arguments.ops,
            arguments.seconds,
            arguments.seed,
            arguments.out,
        )
        return 0
    deadline = time.monotonic() + arguments.seconds
    failures = 0
    for index, program in enumerate(chosen):
        left = deadline - time.monotonic()
        if left < 6:
            print(f"{program[0]}: skipped, no time left", flush=True)
            continue
        share = max(5, left / (len(chosen) - index) - 4)
        environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": program[1]}
        environment.pop("PYTORCH_ALLOC_CONF", None)
        command = [
            sys.executable,
            os.path.abspath(__file__),
            "--child",
            "--out",
            arguments.out,
            "--only",
            program[0],
            "--seconds",
            str(share),
            "--ops",
            str(arguments.ops),
            "--seed",
            str(arguments.seed),
        ]
        try:
            code = subprocess.run(command, env=environment, timeout=share + 60).returncode
        except subprocess.TimeoutExpired:
            code = "timeout"
        if code != 0:
            failures += 1
            print(f"{program[0]}: failed ({code})", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
