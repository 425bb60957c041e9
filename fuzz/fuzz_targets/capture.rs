//! Fuzzes the reader of gpuheap's captures. Reads each input as given, and again with a valid
//! header before it. Opens no files that a capture names.

#![no_main]

use gpuheap_trace::capture::header;
use gpuheap_trace::{ReadOptions, read_bytes};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let options = ReadOptions::default().symbols(false).host_memory(true);
    let _ = read_bytes("fuzz", data, &options);
    let Ok(traces) = read_bytes("fuzz", &[&header(), data].concat(), &options) else { return };
    for trace in traces {
        let summary = trace.summary();
        assert!(summary.left_live <= u64::from(trace.allocations()));
        for event in trace.events() {
            assert!(trace.thread_info(event.thread).is_none_or(|info| info.name.len() <= data.len()));
            assert!(trace.stack(event.stack).len() <= data.len());
        }
    }
});
