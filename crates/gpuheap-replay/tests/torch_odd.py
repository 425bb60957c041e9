"""Makes the snapshots of tests/data/torch-odd. Some of them imitate other PyTorch releases.

    python3 torch_odd.py data/torch-odd

Each snapshot differs from a normal one in one fact. Needs neither PyTorch nor a GPU.
"""

import pickle
import sys
from pathlib import Path

MIB = 1 << 20
SETTINGS = {
    "PYTORCH_CUDA_ALLOC_CONF": "",
    "max_split_size": -1,
    "garbage_collection_threshold": 0.0,
    "expandable_segments": False,
    "pinned_num_register_threads": 1,
    "release_lock_on_cudamalloc": False,
    "pinned_use_cuda_host_register": False,
    "graph_capture_record_stream_reuse": False,
    "roundup_power2_divisions": {},
}


def entry(action, addr, size):
    return {
        "action": action,
        "addr": addr,
        "size": size,
        "stream": 0,
        "time_us": 1,
        "compile_context": "",
        "user_metadata": "",
    }


def block(address, size, state):
    return {
        "address": address,
        "size": size,
        "requested_size": size,
        "state": state,
        "frames": [],
    }


def segment(address, size, blocks):
    return {
        "device": 0,
        "address": address,
        "total_size": size,
        "allocated_size": 0,
        "active_size": 0,
        "requested_size": 0,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": blocks,
    }


def whole():
    """Returns a snapshot with one live block of 30 MiB, in the form of PyTorch 2.11."""
    return {
        "segments": [segment(1 << 40, 30 * MIB, [block(1 << 40, 30 * MIB, "active_allocated")])],
        "device_traces": [
            [
                entry("segment_alloc", 1 << 40, 30 * MIB),
                entry("alloc", 1 << 40, 30 * MIB),
            ]
        ],
        "allocator_settings": dict(SETTINGS),
        "external_annotations": [],
    }


def older(made):
    """Removes the keys that older releases did not write."""
    del made["allocator_settings"], made["external_annotations"]
    for held in made["segments"]:
        del held["is_expandable"], held["segment_pool_id"]
    for event in made["device_traces"][0]:
        del event["compile_context"], event["user_metadata"]


def newer(made):
    """Adds keys that newer releases write."""
    made["host_segments"], made["host_traces"] = [], []
    made["allocator_settings"]["some_setting"] = 3


def no_segments(made):
    """Removes the entries about segments."""
    made["device_traces"][0] = [made["device_traces"][0][1]]


def late(made):
    """Replaces the events with later ones, like a ring buffer that dropped its oldest events."""
    made["device_traces"][0] = [
        entry("segment_alloc", 2 << 40, 20 * MIB),
        entry("alloc", 2 << 40, 5 * MIB),
        entry("free_requested", 2 << 40, 5 * MIB),
        entry("free_completed", 2 << 40, 5 * MIB),
    ]
    made["segments"].append(segment(2 << 40, 20 * MIB, [block(2 << 40, 20 * MIB, "inactive")]))


def collected(made):
    """Turns garbage collection on. Its threshold is relative to a fraction that no snapshot has."""
    made["allocator_settings"]["garbage_collection_threshold"] = 0.6


def emptied(made):
    """Adds two calls of empty_cache(): one before a request, one before a new segment."""
    events = made["device_traces"][0]

    def comes_and_goes(address, size):
        events.extend(
            [
                entry("segment_alloc", address, size),
                entry("alloc", address, size),
                entry("free_requested", address, size),
                entry("free_completed", address, size),
            ]
        )

    comes_and_goes(2 << 40, 40 * MIB)
    events.append(entry("segment_free", 2 << 40, 40 * MIB))
    events.append(entry("alloc", 3 << 40, 0))
    comes_and_goes(4 << 40, 50 * MIB)
    events.append(entry("segment_free", 4 << 40, 50 * MIB))
    comes_and_goes(5 << 40, 20 * MIB)
    made["segments"].append(segment(5 << 40, 20 * MIB, [block(5 << 40, 20 * MIB, "inactive")]))


def ended_pool(made):
    """Adds events of a private pool that ended. Every event of the snapshot has a `pool_id`."""
    events = made["device_traces"][0]
    pool, common = 2 << 40, 3 << 40
    of_pool = [
        entry("segment_alloc", pool, 20 * MIB),
        entry("alloc", pool, 5 * MIB),
        entry("free_requested", pool, 5 * MIB),
        entry("free_completed", pool, 5 * MIB),
    ]
    of_common = [entry("segment_alloc", common, 20 * MIB), entry("alloc", common, 5 * MIB)]
    for event in events + of_common:
        event["pool_id"] = (0, 0)
    for event in of_pool:
        event["pool_id"] = (0, 1)
    events.extend(of_pool + of_common)
    events.append(entry("segment_free", pool, 20 * MIB))
    blocks = [
        block(common, 5 * MIB, "active_allocated"),
        block(common + 5 * MIB, 15 * MIB, "inactive"),
    ]
    made["segments"].append(segment(common, 20 * MIB, blocks))


if __name__ == "__main__":
    for change in (older, newer, no_segments, late, collected, emptied, ended_pool):
        made = whole()
        change(made)
        Path(sys.argv[1], change.__name__ + ".pickle").write_bytes(pickle.dumps(made, protocol=4))
