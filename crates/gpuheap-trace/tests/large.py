#!/usr/bin/env python3
"""Writes a PyTorch memory snapshot of any size, as CPython's pickle module would write it.

    large.py 1e9 large.pickle           # a pickle of 1 GB
    large.py 1e9 bare.pickle --bare     # without stacks, so with more entries
    large.py --check                    # compares small snapshots with the output of pickle.dumps

The recorded program repeats a step: it allocates tensors of changing sizes, and frees them. Each
allocation has a separate list of frames, and the lists share frames through the memo. Each free is
recorded as two entries, free_requested and free_completed. Both share one short list of frames. The
writer keeps nothing in memory, so only the disk limits the size.
"""

import io
import pickle
import pickletools
import sys

FRAME_BYTES = 64 << 10
SEGMENTS = 64
SEGMENT_BYTES = 64 << 20
BLOCK_BYTES = 1 << 20
FIRST_ADDRESS = 0x7F5000000000
FIRST_US = 1795188632092353
FUNCTIONS = 300
PATHS = 500
DEPTH = 20
# Number of entries that one APPENDS adds. CPython uses the same batch size.
BATCH = 1000


class Pickle:
    """Writer of opcodes of protocol 4, in frames."""

    def __init__(self, file):
        self.file = file
        self.pending = []
        self.held = 0
        self.written = 0
        self.memoised = 0
        self.texts = {}
        self.raw(b"\x80\x04", framed=False)

    def raw(self, data, framed=True):
        if not framed:
            self.file.write(data)
            self.written += len(data)
            return
        self.pending.append(data)
        self.held += len(data)

    def end_frame(self, at_least=0):
        if self.held <= at_least:
            return
        data = b"".join(self.pending)
        self.pending, self.held = [], 0
        self.raw(b"\x95" + len(data).to_bytes(8, "little"), framed=False)
        self.raw(data, framed=False)

    def memoise(self):
        self.raw(b"\x94")
        self.memoised += 1
        return self.memoised - 1

    def fresh(self, text):
        """Writes a string that is not shared."""
        data = text.encode()
        self.raw(b"\x8c" + bytes([len(data)]) + data)
        return self.memoise()

    def text(self, text):
        """Writes a string at its first use, and a reference later, as for an interned string."""
        if text in self.texts:
            self.raw(recall(self.texts[text]))
        else:
            self.texts[text] = self.fresh(text)

    def number(self, value):
        self.raw(number(value))

    def begin(self, opcode):
        self.raw(opcode)
        index = self.memoise()
        return index


def recall(index):
    return b"h" + bytes([index]) if index < 256 else b"j" + index.to_bytes(4, "little")


def number(value):
    if value < 1 << 8:
        return b"K" + bytes([value])
    if value < 1 << 16:
        return b"M" + value.to_bytes(2, "little")
    if value < 1 << 31:
        return b"J" + value.to_bytes(4, "little")
    length = value.bit_length() // 8 + 1
    return b"\x8a" + bytes([length]) + value.to_bytes(length, "little")


def write_segment(out, address, empty_list):
    out.begin(b"}")
    out.raw(b"(")
    for key, value in [
        ("device", 0),
        ("address", address),
        ("total_size", SEGMENT_BYTES),
        ("allocated_size", 0),
        ("active_size", 0),
        ("requested_size", 0),
        ("stream", 0),
    ]:
        out.text(key)
        out.number(value)
    out.text("segment_type")
    out.text("large")
    out.text("segment_pool_id")
    out.raw(b"K\x00K\x00\x86")
    out.memoise()
    out.text("is_expandable")
    out.raw(b"\x89")
    out.text("frames")
    if empty_list is None:
        empty_list = out.begin(b"]")
    else:
        out.raw(recall(empty_list))
    out.text("blocks")
    out.begin(b"]")
    out.begin(b"}")
    out.raw(b"(")
    out.text("address")
    out.number(address)
    out.text("size")
    out.number(SEGMENT_BYTES)
    out.text("requested_size")
    out.number(0)
    out.text("state")
    out.text("inactive")
    out.text("frames")
    out.raw(recall(empty_list))
    out.raw(b"uau")
    return empty_list


class Frames:
    """Frames, keyed by function. Each frame is pickled at its first use."""

    def __init__(self, out):
        self.out = out
        self.known = {}

    def write(self, functions):
        out = self.out
        out.begin(b"]")
        out.raw(b"(")
        for function in functions:
            if function in self.known:
                out.raw(self.known[function])
                continue
            self.known[function] = recall(out.begin(b"}"))
            out.raw(b"(")
            out.text("name")
            out.text(f"function_{function}")
            out.text("filename")
            out.text(f"torch/nn/modules/module_{function % 40}.py")
            out.text("line")
            out.number(20 + function)
            out.raw(b"u")
        out.raw(b"e")


class Entries:
    """Writer of the trace's entries into the pickle, in batches, as CPython pickles a list."""

    def __init__(self, out, empty_list, bare):
        self.out = out
        self.bare = bare
        self.count = 0
        self.time_us = FIRST_US
        self.empty_list = recall(empty_list)
        self.frames = Frames(out)

    def write(self, action, address, size, functions=None, shared=None):
        """Writes an entry. Returns its frames' index in the memo: `shared`, or else a new index."""
        out = self.out
        if self.count % BATCH == 0:
            out.raw(b"(" if self.count == 0 else b"e(")
        self.count += 1
        out.begin(b"}")
        out.raw(b"(")
        out.text("action")
        out.text(action)
        out.text("addr")
        out.number(address)
        out.text("size")
        out.number(size)
        out.text("stream")
        out.number(0)
        self.time_us += 3
        out.text("time_us")
        out.number(self.time_us)
        out.text("compile_context")
        out.fresh("N/A")
        out.text("user_metadata")
        out.text("")
        index = None
        if not self.bare:
            out.text("frames")
            index = out.memoised
            if functions is not None:
                self.frames.write(functions)
            else:
                out.raw(self.empty_list if shared is None else recall(shared))
        out.raw(b"u")
        out.end_frame(at_least=FRAME_BYTES)
        return index


def write(out, size, bare=False):
    """Writes a snapshot of about `size` bytes. A bare snapshot has no stacks."""
    out.begin(b"}")
    out.raw(b"(")
    out.text("segments")
    out.begin(b"]")
    out.raw(b"(")
    empty_list = None
    addresses = [FIRST_ADDRESS + at * SEGMENT_BYTES for at in range(SEGMENTS)]
    for address in addresses:
        empty_list = write_segment(out, address, empty_list)
    out.raw(b"e")
    out.text("device_traces")
    out.begin(b"]")
    out.begin(b"]")
    entries = Entries(out, empty_list, bare)
    for address in addresses:
        entries.write("segment_alloc", address, SEGMENT_BYTES)
    paths = [
        [(path * 7 + depth * (1 + path % 11)) % FUNCTIONS for depth in range(DEPTH - path % 5)]
        for path in range(PATHS)
    ]
    free_path = [1, 2]
    blocks = SEGMENTS * SEGMENT_BYTES // BLOCK_BYTES
    live = {}
    step = 0
    while out.written + out.held < size:
        slot = step * 2654435761 % blocks
        address = FIRST_ADDRESS + slot * BLOCK_BYTES
        if slot in live:
            size_of = live.pop(slot)
            shared = entries.write("free_requested", address, size_of, free_path)
            entries.write("free_completed", address, size_of, shared=shared)
        else:
            live[slot] = 600_000 + step * 40_503 % 400_000
            entries.write("alloc", address, live[slot], paths[step % PATHS])
        step = step * 5 % 999_983 + 1 if step % 97 == 0 else step + 1
    for slot, size_of in live.items():
        address = FIRST_ADDRESS + slot * BLOCK_BYTES
        shared = entries.write("free_requested", address, size_of, free_path)
        entries.write("free_completed", address, size_of, shared=shared)
    # CPython writes a last batch of one entry as APPEND. A further entry avoids such a batch.
    if entries.count % BATCH == 1:
        entries.write("snapshot", 0, 0)
    out.raw(b"ea")
    out.text("allocator_settings")
    out.begin(b"}")
    out.raw(b"(")
    out.text("PYTORCH_CUDA_ALLOC_CONF")
    out.text("")
    out.text("max_split_size")
    out.raw(b"J\xff\xff\xff\xff")
    out.text("garbage_collection_threshold")
    out.raw(b"G" + bytes(8))
    for key in [
        "expandable_segments",
        "release_lock_on_cudamalloc",
        "pinned_use_cuda_host_register",
    ]:
        out.text(key)
        out.raw(b"\x89")
    out.text("pinned_num_register_threads")
    out.number(1)
    out.text("graph_capture_record_stream_reuse")
    out.raw(b"\x89")
    out.text("roundup_power2_divisions")
    out.begin(b"}")
    out.raw(b"u")
    out.text("external_annotations")
    out.begin(b"]")
    out.raw(b"u.")
    out.end_frame()
    return entries.count


def check():
    """Compares the pickle's opcodes, except FRAME, with CPython's opcodes for the same data."""

    def opcodes(data):
        found = [(op.name, arg) for op, arg, _ in pickletools.genops(data)]
        return [pair for pair in found if pair[0] != "FRAME"]

    for bare in [False, True]:
        file = io.BytesIO()
        write(Pickle(file), 3_000_000, bare)
        ours = opcodes(file.getvalue())
        theirs = opcodes(pickle.dumps(pickle.loads(file.getvalue()), 4))
        for at, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            assert one == other, f"opcode {at}: {one}, and CPython writes {other}"
    print("the same opcodes as CPython's")


def main():
    if sys.argv[1:] == ["--check"]:
        check()
    elif len(sys.argv) == 3 or sys.argv[3:] == ["--bare"]:
        with open(sys.argv[2], "wb", buffering=1 << 20) as file:
            out = Pickle(file)
            entries = write(out, int(float(sys.argv[1])), bare=len(sys.argv) == 4)
            print(f"{entries} entries, {out.written} bytes")
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
