//! The figures of `examples/traces/README.md`, for every trace and snapshot in it.

use std::path::PathBuf;

use gpuheap_trace::{Format, ReadOptions, Summary, Trace, read};

fn example(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/traces").join(file)
}

fn read_one(file: &str, options: &ReadOptions) -> Trace {
    let mut traces = read(example(file), options).unwrap();
    assert_eq!(traces.len(), 1, "{file} has one device");
    traces.remove(0)
}

fn log(file: &str, events: u64, streams: usize, peak_live_bytes: u64) -> Summary {
    let trace = read_one(file, &ReadOptions::default());
    let summary = trace.summary();
    assert_eq!(trace.format(), Format::RmmCsv);
    assert_eq!(trace.warnings(), []);
    assert_eq!(summary.events, events);
    assert_eq!(summary.streams, streams);
    assert_eq!(summary.peak_live_bytes, peak_live_bytes);
    assert_eq!(summary.unknown_frees, 0);
    assert_eq!(summary.live_before, 0);
    assert_eq!(summary.threads, Some(1));
    assert_eq!(summary.left_live, summary.allocations - summary.frees);
    summary
}

#[test]
fn gpt_train() {
    assert_eq!(log("gpt_train.csv.gz", 113_900, 1, 15_447_174_472).left_live, 0);
}

#[test]
fn llama_ckpt() {
    assert_eq!(log("llama_ckpt.csv.gz", 131_866, 1, 10_005_282_000).left_live, 0);
}

#[test]
fn llm_serve() {
    assert_eq!(log("llm_serve.csv.gz", 431_690, 1, 3_312_016_256).left_live, 0);
}

#[test]
fn cupy_groupby_with_two_live_blocks_of_zero_bytes_at_one_pointer() {
    let summary = log("cupy_groupby.csv.gz", 5_443, 1, 561_988_493);
    assert_eq!(summary.left_live, 11);
    assert_eq!(summary.left_live_bytes, 190_873_643);
}

#[test]
fn two_streams() {
    assert_eq!(log("two_streams.csv.gz", 2_768, 2, 1_842_372_616).left_live, 0);
}

#[test]
fn serve_threads() {
    assert_eq!(log("serve_threads.csv.gz", 13_740, 7, 2_646_497_280).left_live, 12);
}

#[test]
fn gpt_train_short() {
    assert_eq!(log("gpt_train_short.csv.gz", 4_471, 1, 671_893_152).left_live, 3);
}
