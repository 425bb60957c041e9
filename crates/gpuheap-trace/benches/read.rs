//! Measures how fast example traces are read. Goal: 1.5 million events/s for a gzipped log.

use std::hint::black_box;
use std::path::Path;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use gpuheap_trace::{ReadOptions, read_bytes};

const FILES: &[&str] = &[
    "gpt_train.csv.gz",
    "llama_ckpt.csv.gz",
    "llm_serve.csv.gz",
    "cupy_groupby.csv.gz",
    "two_streams.csv.gz",
    "serve_threads.csv.gz",
    "gpt_train_short.csv.gz",
    "two_streams.snapshot.pickle.gz",
    "gpt_train_short.snapshot.pickle.gz",
];

fn read_example_traces(criterion: &mut Criterion) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/traces");
    let options = ReadOptions::default();
    let mut group = criterion.benchmark_group("read");
    group.sample_size(20);
    for &file in FILES {
        let bytes =
            std::fs::read(folder.join(file)).expect("the example traces are in the repository");
        let events: u64 = read_bytes(file, &bytes, &options)
            .expect("the example traces are good")
            .iter()
            .map(|trace| trace.summary().events)
            .sum();
        group.throughput(Throughput::Elements(events));
        group.bench_function(file, |bencher| {
            bencher.iter(|| read_bytes(file, black_box(&bytes), &options));
        });
    }
    group.finish();
}

criterion_group!(benches, read_example_traces);
criterion_main!(benches);
