//! Fuzzes memory snapshots. Reads each input twice: as given, and as the body of a pickle.

#![no_main]

use gpuheap_trace::{ReadOptions, read_bytes};
use libfuzzer_sys::fuzz_target;

/// Limit of the unpacked values, in bytes. The fuzzer's own memory limit is far higher, and ends
/// the fuzzer if a parser ignores this limit.
const UNPACKED_LIMIT: u64 = 64 << 20;

fuzz_target!(|data: &[u8]| {
    let body = [b"\x80\x04", data, b"."].concat();
    for bytes in [data, &body] {
        for recorded_only in [false, true] {
            let options =
                ReadOptions::default().recorded_only(recorded_only).unpacked_limit(UNPACKED_LIMIT);
            for trace in read_bytes("fuzz", bytes, &options).iter().flatten() {
                let summary = trace.summary();
                assert!(summary.peak_live_bytes >= summary.live_before_bytes);
                for event in trace.events() {
                    trace.stack(event.stack).for_each(drop);
                }
            }
        }
    }
});
