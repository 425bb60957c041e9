"""A fake of the part of CuPy that the hook and its example use, because CuPy itself needs a GPU.
Like CuPy's pool, the fake's pool keeps dropped blocks. Its blocks have no memory."""

import sys
import types

from cupy_memory import CFunctionAllocatorMemory, Pointer


class Stream:
    def __cuda_stream__(self):
        return 0, 0


class OutOfMemoryError(MemoryError):
    def __init__(self, size, total, limit=0):
        super().__init__(
            f"Out of memory allocating {size:,} bytes (allocated so far: {total:,} bytes)."
        )


class Block:
    def __init__(self, pool, size):
        self.pool, self.ptr, self.size = pool, 0, size

    def __del__(self):
        self.pool.free.append(self.size)


class Pool:
    def __init__(self):
        self.free, self.total = [], 0

    def malloc(self, nbytes):
        self.total += nbytes
        return Pointer(Block(self, nbytes), 0)

    def total_bytes(self):
        return self.total

    def free_all_blocks(self):
        self.total -= sum(self.free)
        self.free.clear()


class Array:
    def __init__(self, size, dtype):
        self.data = state.allocator(size)


pool, pinned_pool = Pool(), Pool()
state = types.SimpleNamespace(allocator=pool.malloc, pinned=pinned_pool.malloc)
empty = Array


def get_default_memory_pool():
    return pool


def get_default_pinned_memory_pool():
    return pinned_pool


def module(name, **entries):
    made = sys.modules[name] = types.ModuleType(name)
    vars(made).update(entries)
    return made


cuda = module(
    "cupy.cuda",
    get_current_stream=Stream,
    get_allocator=lambda: state.allocator,
    set_allocator=lambda made: setattr(state, "allocator", made),
    set_pinned_memory_allocator=lambda made: setattr(state, "pinned", made),
    device=module("cupy.cuda.device", get_device_id=lambda: 0),
    memory=module(
        "cupy.cuda.memory",
        MemoryPointer=Pointer,
        CFunctionAllocatorMemory=CFunctionAllocatorMemory,
        OutOfMemoryError=OutOfMemoryError,
    ),
    pinned_memory=module("cupy.cuda.pinned_memory", PinnedMemoryPointer=Pointer),
    stream=module("cupy.cuda.stream", get_current_stream=Stream),
)
