//! Tests the figures that `examples/traces/README.md` states for each trace and snapshot.

use std::path::PathBuf;

use gpuheap_trace::{Format, Op, ReadOptions, Trace, read};

fn example(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/traces").join(file)
}

fn read_one(file: &str, options: &ReadOptions) -> Trace {
    let mut traces = read(example(file), options).expect("the example traces are good");
    assert_eq!(traces.len(), 1, "{file} has one device");
    traces.remove(0)
}

#[test]
fn logs_have_documented_figures() {
    for (file, events, streams, peak, left, left_bytes) in [
        ("gpt_train", 113_900, 1, 15_447_174_472, 0, 0),
        ("llama_ckpt", 131_866, 1, 10_005_282_000, 0, 0),
        ("llm_serve", 431_690, 1, 3_312_016_256, 0, 0),
        ("cupy_groupby", 5_443, 1, 561_988_493, 11, 190_873_643),
        ("two_streams", 2_768, 2, 1_842_372_616, 0, 0),
        ("serve_threads", 13_740, 7, 2_646_497_280, 12, 207_618_048),
        ("gpt_train_short", 4_471, 1, 671_893_152, 3, 68_157_440),
    ] {
        let trace = read_one(&format!("{file}.csv.gz"), &ReadOptions::default());
        let summary = trace.summary();
        assert_eq!((trace.format(), trace.warnings()), (Format::RmmCsv, &[][..]), "{file}");
        assert_eq!((summary.events, summary.streams), (events, streams), "{file}");
        assert_eq!((summary.peak_live_bytes, summary.left_live), (peak, left), "{file}");
        assert_eq!((summary.unknown_frees, summary.live_before), (0, 0), "{file}");
        assert_eq!(summary.threads, Some(1), "{file}");
        assert_eq!(summary.left_live, summary.allocations - summary.frees, "{file}");
        assert_eq!(summary.left_live_bytes, left_bytes, "{file}");
    }
}

#[test]
fn two_streams_snapshot_has_earlier_blocks() {
    let trace = read_one("two_streams.snapshot.pickle.gz", &ReadOptions::default());
    let summary = trace.summary();
    assert_eq!(trace.format(), Format::PytorchSnapshot);
    assert_eq!(trace.device(), Some(0));
    assert_eq!(trace.warnings(), []);
    assert_eq!(summary.events, 2_768);
    assert_eq!(summary.streams, 2);
    assert_eq!(summary.threads, None);
    assert_eq!(summary.peak_live_bytes, 1_910_530_056);
    assert_eq!(summary.live_before, 3);
    assert_eq!(summary.live_before_bytes, 68_157_440);
    assert_eq!(summary.left_live, 3);
    assert_eq!(summary.left_pending, 18);
    assert_eq!(summary.left_pending_bytes, 1_185_652_736);
    assert_eq!(trace.reconstructed_events(), 3);
}

#[test]
fn recorded_only_snapshot_has_log_figures() {
    let options = ReadOptions::default().recorded_only(true);
    let summary = read_one("two_streams.snapshot.pickle.gz", &options).summary();
    assert_eq!(summary.events, 2_768);
    assert_eq!(summary.peak_live_bytes, 1_842_372_616);
    assert_eq!(summary.live_before, 0);
    assert_eq!(summary.left_live, 0);
    assert_eq!(summary.left_pending, 18);
}

#[test]
fn gpt_train_short_begins_without_blocks() {
    for recorded_only in [false, true] {
        let options = ReadOptions::default().recorded_only(recorded_only);
        let summary = read_one("gpt_train_short.snapshot.pickle.gz", &options).summary();
        assert_eq!(summary.events, 4_471);
        assert_eq!(summary.streams, 1);
        assert_eq!(summary.peak_live_bytes, 671_893_152);
        assert_eq!(summary.live_before_bytes, 0);
        assert_eq!(summary.left_live, 3);
        assert_eq!(summary.left_pending, 0);
    }
}

#[test]
fn snapshot_and_log_have_equal_events() {
    for run in ["two_streams", "gpt_train_short"] {
        let log = read_one(&format!("{run}.csv.gz"), &ReadOptions::default());
        let options = ReadOptions::default().recorded_only(true);
        let snapshot = read_one(&format!("{run}.snapshot.pickle.gz"), &options);
        assert_eq!(program(&log), program(&snapshot), "{run}");
        assert_eq!(log.addresses(), snapshot.addresses(), "{run}");
    }
}

/// Returns the requests and frees of the program in order, each with its stream's handle.
fn program(trace: &Trace) -> Vec<(u64, Op)> {
    trace
        .events()
        .iter()
        .filter(|event| matches!(event.op, Op::Allocate { .. } | Op::Free { .. }))
        .map(|event| (trace.streams()[event.stream as usize].handle, event.op))
        .collect()
}

#[test]
fn stacks_are_innermost_first() {
    let trace = read_one("two_streams.snapshot.pickle.gz", &ReadOptions::default());
    let first = trace.events()[trace.reconstructed_events()];
    assert!(matches!(first.op, Op::SegmentTaken { bytes: 16_777_216, .. }));
    let frames: Vec<_> = trace.stack(first.stack).collect();
    assert_eq!(frames.len(), 7);
    assert_eq!((&*frames[0].function, frames[0].line), ("convert", 1370));
    assert_eq!((&*frames[6].function, &*frames[6].file), ("<module>", "train.py"));
    assert_eq!(trace.stack(0).len(), 0);
    assert_eq!(trace.stack(u32::MAX).len(), 0);
}
