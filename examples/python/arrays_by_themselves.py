"""How do I use GPU arrays without managing memory by hand?

Uploads arrays, computes with them, and downloads the results. Python frees an array's memory when
it collects the array. The only call of free shows an early free.

    python arrays_by_themselves.py                  # on an emulated device
    python arrays_by_themselves.py cuda:0
"""

import array
import sys

import gpuheap

heap = gpuheap.Heap(
    sys.argv[1] if len(sys.argv) > 1 else "emulated:1GiB", limit="64MiB", track="lines"
)


def live():
    return f"{heap.stats()['live']:,} bytes live"


print("-- up, computed with, and down")
a = heap.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
b = heap.array(array.array("d", [10.0, 20.0, 30.0]))  # NumPy's arrays go up the same way
centred = a * 2 + b - (a * 2 + b).mean(0)
print(centred.to_list(), "sum of positive:", (centred > 0).sum())
print(live())

print("-- temporaries are free already; a name that ends frees its array")
del a, b, centred
print(live())

print("-- a part shares the memory of the whole")
table = heap.zeros((1000, 1000), "float32")
row = table[10]
row += 1
print("sum:", table.sum(), "by", repr(row))
table.free()
try:
    row.sum()
except gpuheap.Freed as error:
    print("Freed:", error)

print("-- a whole structure")
model = heap.adapt(
    {"layers": [memoryview(bytes(4000)).cast("f"), memoryview(bytes(8000)).cast("d")], "rate": 0.1},
    narrow=True,
)
print([layer.dtype for layer in model["layers"]], model["rate"], live())
for line in heap.leaks():
    print(line.bytes, "bytes by line", line.line)
del model

print("-- more data than memory")
data = memoryview(bytes(range(256)) * (1 << 20))  # 256 MiB under a limit of 64
batches = gpuheap.batches(data, heap=heap)
total = sum(batch.sum() for batch in batches)
print("sum:", total, "in batches of", f"{batches.chunk >> 20} MiB")
print(live())
