//! Time of an event in each model.

use std::hint::black_box;
use std::path::Path;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use gpuheap_replay::Program;
use gpuheap_replay::models::build;
use gpuheap_trace::{ReadOptions, read};

const H200: u64 = 150_109_880_320;

fn models(criterion: &mut Criterion) {
    let traces = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/traces");
    for name in ["llm_serve", "gpt_train", "serve_threads"] {
        let path = traces.join(format!("{name}.csv.gz"));
        let trace = &read(path, &ReadOptions::default()).expect("an example trace")[0];
        let program = Program::from_trace(trace);
        let mut group = criterion.benchmark_group(name);
        group.throughput(Throughput::Elements(program.len() as u64)).sample_size(10);
        for model in [
            "torch",
            "torch:expandable_segments:True",
            "rmm:pool:initial_pool_size:1GiB",
            "rmm:arena",
            "rmm:async",
            "cupy",
            "cuda",
        ] {
            group.bench_function(model, |bencher| {
                bencher.iter(|| {
                    let mut model = build(model, H200).expect("a known model");
                    black_box(program.run(&mut *model))
                });
            });
        }
        group.finish();
    }
}

criterion_group!(benches, models);
criterion_main!(benches);
