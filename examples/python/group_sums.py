"""How do I sum a table by group that is larger than GPU memory, without CuPy or cuDF?

The sums of all groups stay on the device, and batches of rows are added to them. The heap's limit
is a fraction of the table's size.

    python group_sums.py                            # on an emulated device
    python group_sums.py cuda:0
"""

import array
import sys

import gpuheap

ROWS, GROUPS = 1 << 21, 5

# The table is on the host. It has a column of numbers, and a key for each row.
values = array.array("d", (row % 7 * (row % GROUPS) for row in range(ROWS)))
keys = array.array("B", (row % GROUPS for row in range(ROWS)))
table_bytes = ROWS * 9

heap = gpuheap.Heap(sys.argv[1] if len(sys.argv) > 1 else "emulated:1GiB", limit="8MiB")

sums = heap.zeros(GROUPS)
counts = heap.zeros(GROUPS, "uint64")
number = 0
for value, key in gpuheap.batches((values, keys), fraction=0.25, heap=heap):
    sums += value.sum_by_key(key, GROUPS)
    counts += key.count_by_key(GROUPS)
    number += 1

means = sums / counts.astype("float64")
print(
    f"{table_bytes >> 20} MiB in {number} batches, {heap.stats()['reserved_peak'] >> 20} MiB at most"
)
for group, (total, count, mean) in enumerate(
    zip(sums.to_list(), counts.to_list(), means.to_list())
):
    print(f"group {group}: {count:7} rows, sum {total:11.0f}, mean {mean:7.4f}")

on_host = [sum(values[group::GROUPS]) for group in range(GROUPS)]
print("the same on the host:", on_host == sums.to_list())
