"""Times how fast gpuheap and pyarrow read a Parquet file. Prints a Markdown table.

    python benches/python/tables.py [--rows 8000000] [--turns 5] [--device emulated:4GiB]

The file has four columns of numbers. A figure is the median of all turns, in GB of columns a
second. In each turn, gpuheap and pyarrow read the file one after the other.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet

import gpuheap


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=8_000_000)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--device", default="emulated:4GiB")
    arguments = parser.parse_args()
    heap = gpuheap.Heap(arguments.device, limit="512MiB")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.parquet"
        nbytes = write(path, arguments.rows)
        ways = {
            "pyarrow.parquet.read_table": lambda: parquet.read_table(path),
            "iter_batches": lambda: whole(parquet.ParquetFile(path).iter_batches()),
            "gpuheap.batches": lambda: whole(gpuheap.batches(path, heap=heap)),
        }
        times = {name: [] for name in ways}
        for _ in range(arguments.turns + 1):
            for name, read in ways.items():
                start = time.perf_counter()
                read()
                times[name].append(time.perf_counter() - start)
    print(f"{nbytes / 1e9:.2f} GB, {arguments.turns} turns, {heap.device.name}\n")
    print("| read by | GB/s |\n|---|---|")
    for name, taken in times.items():
        # The first turn loads the libraries.
        print(f"| {name} | {nbytes / statistics.median(taken[1:]) / 1e9:.2f} |")


def write(path, rows):
    """Writes a file of `rows` rows. Returns the bytes of its columns."""
    random = np.random.default_rng(1)
    table = pa.table(
        {
            "key": random.integers(0, 1000, rows),
            "x": random.random(rows),
            "y": random.random(rows),
            "n": np.arange(rows),
        }
    )
    parquet.write_table(table, path, row_group_size=1 << 20)
    return table.nbytes


def whole(batches):
    return sum(len(batch) for batch in batches)


if __name__ == "__main__":
    main()
