//! Provides a pickle encoder, small snapshots and gzip for several test files.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use gpuheap_trace::{Op, ReadOptions, Trace, read_bytes};

pub(crate) mod pickle;

pub(crate) const HEADER: &str = "Thread,Time,Action,Pointer,Size,Stream\n";

/// Returns a log of these rows, each `action,pointer,size,stream`, one microsecond apart on thread
/// 1.
pub(crate) fn log(rows: &[&str]) -> String {
    let mut text = HEADER.to_owned();
    for (index, row) in rows.iter().enumerate() {
        text += &format!("1,10:00:00.{index:06},{row}\n");
    }
    text
}

pub(crate) fn read_one(bytes: &[u8]) -> Trace {
    let mut traces = read_bytes("test", bytes, &ReadOptions::default()).expect("is readable");
    assert_eq!(traces.len(), 1);
    let trace = traces.remove(0);
    assert_keeps_its_word(&trace);
    trace
}

pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).expect("a vector takes all");
    encoder.finish().expect("a vector takes all")
}

/// Asserts the guarantees of [`Trace`].
pub(crate) fn assert_keeps_its_word(trace: &Trace) {
    #[derive(PartialEq, Debug)]
    enum State {
        Live,
        Freed,
        Completed,
    }
    let mut states = Vec::new();
    let (mut time_ns, mut number) = (0, 0);
    for (index, event) in trace.events().iter().enumerate() {
        match event.op {
            Op::Allocate { allocation, .. } => {
                assert_eq!(allocation as usize, states.len(), "numbers are dense and in order");
                states.push(State::Live);
            }
            Op::Free { allocation } => {
                let state = &mut states[allocation as usize];
                assert_eq!(*state, State::Live);
                *state = State::Freed;
            }
            Op::FreeCompleted { allocation } => {
                assert!(trace.format().records_completion());
                let state = &mut states[allocation as usize];
                assert_eq!(*state, State::Freed);
                *state = State::Completed;
            }
            _ => {}
        }
        assert!(event.time_ns >= time_ns, "time never goes back");
        time_ns = event.time_ns;
        assert!(event.number >= number, "neither do numbers");
        number = event.number;
        if index < trace.reconstructed_events() {
            assert_eq!(number, 0, "{event:?}");
        } else if matches!(
            event.op,
            Op::Allocate { .. } | Op::Free { .. } | Op::Fail { .. } | Op::Retry { .. }
        ) {
            assert!(number > 0, "{event:?}");
        }
        assert!((event.stream as usize) < trace.streams().len());
        match trace.threads() {
            Some(threads) => assert!((event.thread as usize) < threads.len()),
            None => assert_eq!(event.thread, 0),
        }
        assert!(event.stack == 0 || trace.stack(event.stack).len() > 0);
    }
    assert_eq!(states.len(), trace.allocations() as usize);
    assert_eq!(states.len(), trace.addresses().len());
    let summary = trace.summary();
    assert!(u64::from(number) <= summary.events, "{number} of {}", summary.events);
    let frees = summary.frees + summary.inferred_frees;
    assert_eq!(summary.left_live + frees, summary.live_before + summary.allocations);
    let left_live = states.iter().filter(|&state| *state == State::Live).count();
    assert_eq!(summary.left_live, left_live as u64);
}
