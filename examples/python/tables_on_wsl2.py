"""How do I work with a table that is larger than GPU memory, under WSL2?

Shows five ways in which cuDF programs run out of memory, and a remedy for each. Runs on an emulated
card of 8 GB under WSL2. The limit is 16 MiB, as if other programs used the rest of the card, so a
table of 24 MiB is too large.

    python tables_on_wsl2.py                        # on the emulated card, on any machine

cuDF itself does not run on an emulated card. The heap's tables take its place. Comments show the
lines with cuDF. Needs pyarrow and pandas.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
from pyarrow import csv

import gpuheap

MIB, ROWS = 1 << 20, 1 << 20
SHOWN = 70

card = gpuheap.Heap("emulated:wsl2-rtx4060", limit="16MiB", track="lines")
gpuheap.set_default_heap(card)
folder = tempfile.TemporaryDirectory()
path = Path(folder.name) / "data.csv"
frame = pd.DataFrame(
    {
        "key": np.arange(ROWS) % 5,
        "value": np.arange(ROWS) % 1000 / 4,
        "other": np.arange(ROWS),
    }
)
wanted = frame["value"].sum()
means = frame.groupby("key")["value"].mean()
csv.write_csv(pa.table(frame), path)


def large_frame_at_once():
    card.adapt(frame)  # cudf.from_pandas(frame)


def large_frame_in_batches():
    return sum(part["value"].sum() for part in gpuheap.batches(frame))


def csv_through_pandas():
    host = pd.read_csv(path)  # needs the host's memory for all of it
    card.adapt(host)  # cudf.from_pandas(host)


def csv_in_batches():
    parts = gpuheap.batches(path, columns=["value"])
    return sum(part["value"].sum() for part in parts)


def direct_read():
    text = card.array(path.read_bytes())  # cudf.read_csv(path): the text, and then the columns
    return text, card.adapt(csv.read_csv(path))


def direct_read_of_one_column():
    total = 0.0
    with gpuheap.batches(path, columns=["value"], types={"value": "float32"}) as parts:
        for part in parts:
            total += part["value"].values.astype("float64").sum()
        print("  " + str(parts.copies))
    return total


def groups_of_kept_chunks():
    chunks = []
    for chunk in pd.read_csv(path, chunksize=1 << 17):
        chunks.append(card.adapt(chunk))  # cudf.concat(chunks).groupby("key") comes after
    return chunks


def groups_in_batches():
    groups = gpuheap.group_by(path, "key").agg(mean=("value", "mean"), total=("value", "sum"))
    found = groups.to_pandas()
    assert np.allclose(found["mean"], means)
    return found["total"].sum()


def unlimited_growth():
    history = []
    for part in gpuheap.batches(path):
        # Each result stays on the device.
        history.append([column.values * 2 for _, column in part.items()])
    return history


def growth_on_the_host():
    history = []
    for part in gpuheap.batches(path, columns=["value"]):
        doubled = part["value"].values * 2
        history.append(doubled.to_numpy())  # on the host, and the device's array is freed
    return sum(one.sum() for one in history) / 2


PAIRS = [
    (large_frame_at_once, large_frame_in_batches),
    (csv_through_pandas, csv_in_batches),
    (direct_read, direct_read_of_one_column),
    (groups_of_kept_chunks, groups_in_batches),
    (unlimited_growth, growth_on_the_host),
]

failed = 0
for fails, cures in PAIRS:
    print(f"-- {fails.__name__}")
    try:
        fails()
        print("  it fitted, which it should not")
        failed += 1
    except gpuheap.OutOfMemory as error:
        text = str(error)
        print(f"  MemoryError: {text[:SHOWN]}{'...' if len(text) > SHOWN else ''}")
        del error
    gpuheap.flush(tracebacks=True)
    card.reclaim()
    found = cures()
    is_right = np.isclose(found, wanted)
    failed += not is_right
    print(f"  {cures.__name__}: {found:,.0f}, {'as pandas' if is_right else 'WRONG'}")
peak = card.stats()["reserved_peak"] // MIB
print(f"at most {peak} MiB of the card, for {frame.memory_usage().sum() // MIB} MiB of columns")
sys.exit(failed)
