//! Compares a snapshot's keys with the keys of PyTorch 2.11.

use super::entry::Entries;
use super::plain::Plain;
use super::value::Value;
use crate::error::escape;
use crate::model::SnapshotKeys;

/// Keys at the top level of a snapshot of PyTorch 2.11. The constants below have the keys of a
/// snapshot's other dicts.
const TOP: [&str; 4] = ["segments", "device_traces", "allocator_settings", "external_annotations"];
const SETTINGS: [&str; 9] = [
    "PYTORCH_CUDA_ALLOC_CONF",
    "max_split_size",
    "garbage_collection_threshold",
    "expandable_segments",
    "pinned_num_register_threads",
    "release_lock_on_cudamalloc",
    "pinned_use_cuda_host_register",
    "graph_capture_record_stream_reuse",
    "roundup_power2_divisions",
];
const SEGMENT: [&str; 12] = [
    "device",
    "address",
    "total_size",
    "allocated_size",
    "active_size",
    "requested_size",
    "stream",
    "segment_type",
    "segment_pool_id",
    "is_expandable",
    "frames",
    "blocks",
];
const BLOCK: [&str; 5] = ["address", "size", "requested_size", "state", "frames"];
const ENTRY: [&str; 7] =
    ["action", "addr", "size", "stream", "time_us", "compile_context", "user_metadata"];
/// Keys that only some entries have: `frames` if stacks were recorded, `device_free` for a failed
/// request.
const ENTRY_AT_TIMES: [&str; 2] = ["frames", "device_free"];

/// Largest number of unknown keys in a message.
const MOST_NAMED: usize = 16;

/// Compares the keys of the snapshot, and of its first segment, block and entry, with known keys.
pub(super) fn compare(plain: &Plain<'_>, entries: &Entries, snapshot: Value) -> SnapshotKeys {
    let mut keys = SnapshotKeys::default();
    let mut look = |prefix: &str, value: Option<Value>, known: &[&str], at_times: &[&str]| {
        let Some(found) = value.and_then(|value| plain.keys(value, entries)) else { return };
        let name = |key: &str| format!("{prefix}{key}");
        let lacks = |key: &&&str| !found.contains(&key.as_bytes());
        keys.missing.extend(known.iter().filter(lacks).map(|key| name(key)));
        for key in found {
            let is_known = known.iter().chain(at_times).any(|known| known.as_bytes() == key);
            if !is_known && keys.unknown.len() < MOST_NAMED {
                keys.unknown.push(name(&escape(key)));
            }
        }
    };
    look("", Some(snapshot), &TOP, &[]);
    look("allocator_settings.", plain.value(snapshot, "allocator_settings"), &SETTINGS, &[]);
    let segment = plain.value(snapshot, "segments").and_then(|all| plain.first(all));
    look("segments[].", segment, &SEGMENT, &[]);
    let block = segment.and_then(|segment| plain.first(plain.value(segment, "blocks")?));
    look("segments[].blocks[].", block, &BLOCK, &[]);
    let traces = plain.value(snapshot, "device_traces");
    let entry = traces.and_then(|traces| plain.first_of_lists(traces));
    look("device_traces[][].", entry, &ENTRY, &ENTRY_AT_TIMES);
    keys
}
