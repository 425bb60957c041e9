"""Why does RAPIDS run out of memory under WSL2, with memory left?

Under WSL2, Windows owns the card and may refuse memory that the driver reports as free. It may
refuse RMM's pool, because the pool takes half of the card when it starts. This program shows the
refusal on an emulated card of 8 GB, and the remedy: a small first piece, and at most 80 % of the
free memory. The last lines that it prints are for your program.

    python rapids_on_wsl2.py                        # on the emulated card, on any machine

RMM itself does not run on an emulated card, so a heap makes the pool's requests here. With
pool="none", each request goes to the driver. On your machine `gpuheap explain rapids` has the
numbers.
"""

import gpuheap

MIB, GIB = 1 << 20, 1 << 30

card = gpuheap.Heap("emulated:wsl2-rtx4060", limit="100%", pool="none")


def free():
    figures = card.status()
    return figures.device_total - figures.device_used


def gib(nbytes):
    return f"{nbytes / GIB:.2f} GiB"


half = card.device.total_memory // 2
windows = card.alloc(3800 * MIB)  # as the desktop and the browser of Windows hold it
print(f"the driver calls {gib(free())} free")

print("\n-- import cudf; rmm.reinitialize(pool_allocator=True)")
print(f"the pool's first piece, half of the card: {gib(half)}")
try:
    card.alloc(half)
except gpuheap.OutOfMemory as error:
    print("MemoryError, with memory left:")
    print(gpuheap.explain(error))

print("-- what RMM says of it, as you would paste it into gpuheap explain")
print(
    gpuheap.explain(
        'File "/mnt/c/Users/ann/load.py", line 4\n'
        "MemoryError: std::bad_alloc: out_of_memory: CUDA error at: /opt/rapids/include/rmm/mr/device/"
        "cuda_memory_resource.hpp:62: cudaErrorMemoryAllocation out of memory"
    )
)

print("-- the cure: begin with 1 GiB, and take at most 80 % of what is free")
most = free() * 80 // 100 // (256 * MIB) * 256 * MIB
pieces = [card.alloc(GIB)]
while sum(piece.nbytes for piece in pieces) + 256 * MIB <= most:
    pieces.append(card.alloc(256 * MIB))  # the pool grows while cuDF works
print(f"it grew to {gib(sum(piece.nbytes for piece in pieces))}, and nothing was refused")

print(
    "\n-- in your program, before cudf is imported; the sizes for your card: gpuheap explain rapids"
)
print("import rmm")
print(f"rmm.reinitialize(pool_allocator=True, initial_pool_size={GIB}, maximum_pool_size={most})")
print("import cudf")
print("-- in the shell, so that cuDF moves to the host what does not fit")
print("export CUDF_SPILL=on")
