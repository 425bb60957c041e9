"""Prints the memory figures of a program."""

import sys

import torch


def tell():
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    stats = torch.cuda.memory_stats()
    print(
        f"DRY {' '.join(sys.argv)} torch={torch.__version__}"
        f" peak_allocated={stats['allocated_bytes.all.peak']} peak_requested={stats['requested_bytes.all.peak']}"
        f" peak_reserved={stats['reserved_bytes.all.peak']} used_at_end={total - free}"
        f" allocs={stats['allocation.all.allocated']}",
        flush=True,
    )
