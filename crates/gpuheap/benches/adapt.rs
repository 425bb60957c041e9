//! Cost of a structure of many small arrays, adapted as a whole and one array at a time. Runs on an
//! emulated device or on `GPUHEAP_TEST_DEVICE`: `cargo bench -p gpuheap --bench adapt`.
//!
//! `up` and `down` upload and download 10,000 arrays of 256 bytes, waits included.

#![expect(clippy::unwrap_used, reason = "a bench that fails says where")]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use gpuheap::emu::Profile;
use gpuheap::{Device, DeviceArray, Heap, Host};

const LEAVES: usize = 10_000;

fn small_leaves(criterion: &mut Criterion) {
    let device = match std::env::var("GPUHEAP_TEST_DEVICE") {
        Ok(name) => Device::open(&name).unwrap(),
        Err(_) => Device::emulated(Profile::h200()).unwrap(),
    };
    let target = Heap::builder(&device).without_environment().build().unwrap().target().unwrap();
    let host: Vec<Vec<f32>> = (0..LEAVES).map(|leaf| vec![leaf as f32; 64]).collect();
    let wait = |made: Vec<DeviceArray<f32>>| {
        target.stream().synchronize().unwrap();
        made
    };

    let mut group = criterion.benchmark_group("up");
    group.sample_size(20).throughput(Throughput::Elements(LEAVES as u64));
    group.bench_function("adapt", |bencher| bencher.iter(|| wait(target.adapt(&host).unwrap())));
    let each = || host.iter().map(|leaf| target.array(leaf).unwrap()).collect();
    group.bench_function("each", |bencher| bencher.iter(|| wait(each())));
    group.finish();

    let up = target.adapt(&host).unwrap();
    let mut group = criterion.benchmark_group("down");
    group.sample_size(20).throughput(Throughput::Elements(LEAVES as u64));
    group.bench_function("adapt", |bencher| bencher.iter(|| Host.adapt(&up).unwrap()));
    let each = || -> Vec<Vec<f32>> { up.iter().map(|leaf| leaf.to_vec().unwrap()).collect() };
    group.bench_function("each", |bencher| bencher.iter(each));
    group.finish();
}

criterion_group!(benches, small_leaves);
criterion_main!(benches);
