"""How do I sum a CSV file that neither GPU memory nor host memory has room for?

The device may hold a tenth of the file. The host's memory is capped below the file's size, as in a
small container. There, pandas fails, and the sum over batches succeeds.

    python csv_larger_than_memory.py                # a file of 256 MiB, on an emulated device
    python csv_larger_than_memory.py 1024 cuda:0    # a file of 1 GiB, on a GPU

Needs pyarrow and pandas. An emulated device's memory is host memory, and counts against the cap.
"""

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

MIB = 1 << 20
# Keeps allocators from reserving addresses ahead of use, because `cap` limits the address space.
PLAIN = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1"}


def write(path, nbytes):
    """Writes a CSV file of about `nbytes` bytes. Returns the sum of its column `value`."""
    import numpy as np
    import pyarrow as pa
    from pyarrow import csv

    total, rows = 0.0, 1 << 18
    with open(path, "wb") as file:
        while (written := file.tell()) < nbytes:
            value = np.random.default_rng(written).integers(0, 1 << 30, rows) / 4
            part = pa.table({"name": np.arange(rows).astype(str), "value": value})
            csv.write_csv(part, file, csv.WriteOptions(include_header=written == 0))
            total += value.sum()
    return total


def mapped(name):
    """Returns the process's current (`VmSize`) or peak (`VmPeak`) address space in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) << 10
    raise LookupError(name)


def cap(path):
    """Caps the address space at its current size plus three quarters of the file's size."""
    before, most = mapped("VmSize"), path.stat().st_size * 3 // 4
    resource.setrlimit(resource.RLIMIT_AS, (before + most, before + most))
    return before


def by_pandas(path, _device):
    import pandas
    import pyarrow.csv  # noqa: F401

    cap(path)
    print(pandas.read_csv(path)["value"].sum())


def by_batches(path, device):
    import pyarrow.csv  # noqa: F401

    import gpuheap

    heap = gpuheap.Heap(device, limit=path.stat().st_size // 10)
    before = cap(path)
    total = 0.0
    with gpuheap.batches(path, columns=["value"], heap=heap) as batches:
        for batch in batches:
            total += batch["value"].sum()
        print(batches.copies, file=sys.stderr)
    peak = mapped("VmPeak") - before
    print(f"peak of the host: {peak // MIB} MiB above the program's start", file=sys.stderr)
    print(f"peak of the device: {heap.stats()['reserved_peak'] // MIB} MiB", file=sys.stderr)
    print(total)


def main(mib=256, device="emulated:1GiB"):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.csv"
        total = write(path, int(mib) * MIB)
        size = path.stat().st_size // MIB
        print(f"{size} MiB of text; {size * 3 // 4} MiB on the host, {size // 10} on the device")
        # pyarrow's threads reserve their stacks, too.
        resource.setrlimit(
            resource.RLIMIT_STACK, (MIB, resource.getrlimit(resource.RLIMIT_STACK)[1])
        )
        for work in (by_pandas, by_batches):
            print(f"-- {work.__name__}", flush=True)
            command = [sys.executable, __file__, work.__name__, path, device]
            done = subprocess.run(command, capture_output=True, text=True, env=os.environ | PLAIN)
            lines = done.stderr.splitlines()
            print(*(lines if done.returncode == 0 else lines[-1:]), sep="\n")
            if done.returncode == 0:
                print(f"the sum is right: {abs(float(done.stdout) - total) < 1e-9 * total}")


if __name__ == "__main__":
    if sys.argv[1:2] in (["by_pandas"], ["by_batches"]):
        globals()[sys.argv[1]](Path(sys.argv[2]), sys.argv[3])
    else:
        main(*sys.argv[1:])
