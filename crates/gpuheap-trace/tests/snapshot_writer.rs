//! Writes snapshots and reads them again.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

use std::path::Path;

use gpuheap_trace::{Op, ReadOptions, Summary, Trace, read, read_bytes, write_pytorch_snapshot};

fn example(name: &str) -> Vec<Trace> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/traces");
    read(folder.join(name), &ReadOptions::default()).unwrap()
}

fn again(traces: &[Trace]) -> Vec<Trace> {
    let mut bytes = Vec::new();
    write_pytorch_snapshot(traces, &mut bytes).unwrap();
    read_bytes("again", &bytes, &ReadOptions::default()).unwrap()
}

/// Returns the figures that a snapshot can represent.
fn figures(summary: Summary) -> [u64; 8] {
    let Summary { allocations, frees, failures, retries, .. } = summary;
    let Summary { left_live_bytes, peak_live_bytes, live_before_bytes, .. } = summary;
    let streams = summary.streams as u64;
    [
        allocations,
        frees,
        failures + retries,
        left_live_bytes,
        peak_live_bytes,
        live_before_bytes,
        streams,
        summary.left_pending_bytes,
    ]
}

#[test]
fn written_snapshots_read_back() {
    for name in ["two_streams.snapshot.pickle.gz", "varied_oom.snapshot.pickle.gz"] {
        let traces = example(name);
        let again = again(&traces);
        assert_eq!(again.len(), traces.len());
        for (again, trace) in again.iter().zip(&traces) {
            assert_eq!(figures(again.summary()), figures(trace.summary()), "{name}");
            assert_eq!(again.device(), trace.device());
            assert_eq!(again.addresses().len(), trace.addresses().len());
            let ranges = |trace: &Trace| -> Vec<(u64, u64)> {
                let segments = trace.segments_at_end();
                segments.iter().map(|segment| (segment.address, segment.bytes)).collect()
            };
            assert_eq!(ranges(again), ranges(trace));
        }
    }
}

#[test]
fn logs_become_snapshots_with_segments() {
    let traces = example("cupy_groupby.csv.gz");
    let again = again(&traces);
    let (before, after) = (traces[0].summary(), again[0].summary());
    assert_eq!(after.peak_live_bytes, before.peak_live_bytes);
    assert_eq!(after.left_live_bytes, before.left_live_bytes);
    let taken = |op: Op| matches!(op, Op::SegmentTaken { .. });
    let segments = again[0].events().iter().filter(|event| taken(event.op)).count();
    assert!(segments > 0 && segments as u64 <= after.allocations);
}
