#!/usr/bin/env python3
"""Records logs of RMM for the test `rmm`: work like cuDF's, with enough and with too little memory.

    python3 record.py FOLDER

Needs RMM and one GPU. Prints the peak of the bytes that the pool took from its upstream, and the
text of the failure. Copy the files into crates/gpuheap-replay/tests/data/rmm-logs.
"""

import gzip
import os
import random
import shutil
import sys

import rmm
import rmm.mr

MIB = 1 << 20


def buffers(rows, widths):
    return [rmm.DeviceBuffer(size=rows * width) for width in widths]


def group_by(rng, rows, kept):
    """Allocates like a filter, a sort and a group-by of a table of four columns."""
    columns = buffers(rows, (8, 8, 4, 1))
    masks = buffers((rows + 511) // 512, (64, 64, 64, 64))
    order = rmm.DeviceBuffer(size=rows * 4)
    scratch = rmm.DeviceBuffer(size=rows * 12 + 767)
    groups = max(1, int(rows * rng.uniform(0.01, 0.6)))
    sums = buffers(groups, (8, 8, 8))
    table = rmm.DeviceBuffer(size=groups * 2 * 8)
    del scratch
    gathered = [
        rmm.DeviceBuffer(size=int(rows * rng.uniform(0.3, 1.0)) * width + 1) for width in (8, 8, 4)
    ]
    del order, table
    for _ in range(rng.randrange(3, 9)):
        rmm.DeviceBuffer(size=rng.randrange(1, 4096))
    kept.extend(sums)
    if rng.random() < 0.25:
        kept.extend(gathered)
    while len(kept) > 30:
        kept.pop(rng.randrange(len(kept)))
    del columns, masks


def play(out, name, maximum, mega_rows, chunks):
    upstream = rmm.mr.StatisticsResourceAdaptor(rmm.mr.CudaMemoryResource())
    pool = rmm.mr.PoolMemoryResource(
        upstream, initial_pool_size=512 * MIB, maximum_pool_size=maximum
    )
    log = rmm.mr.LoggingResourceAdaptor(pool, os.path.join(out, name + ".csv"))
    rmm.mr.set_current_device_resource(log)
    rng, kept = random.Random(3), []
    try:
        for _ in range(chunks):
            group_by(rng, int(mega_rows * MIB * rng.uniform(0.5, 2.0)), kept)
        print(f"{name} got through", end="; ")
    except MemoryError as error:
        print(f"{name} failed: {error}", end="; ")
    print(f"upstream peak {upstream.allocation_counts.peak_bytes}", flush=True)
    kept.clear()
    log.flush()
    # RMM puts the device into the name.
    path = os.path.join(out, name + ".dev0.csv")
    with open(path, "rb") as text, gzip.open(path + ".gz", "wb", compresslevel=9) as packed:
        shutil.copyfileobj(text, packed)
    os.remove(path)


def main():
    out = sys.argv[1]
    os.makedirs(out, exist_ok=True)
    play(out, "cudf_like", None, 4, 120)
    play(out, "cudf_oom", 1536 * MIB, 6, 120)


if __name__ == "__main__":
    main()
