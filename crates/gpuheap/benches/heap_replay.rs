//! Replays a real trace on an emulated device: `cargo bench -p gpuheap --bench heap_replay`. An
//! iteration is one pass through `two_streams` (2,768 events) or `serve_threads` (13,740). It
//! starts with the cache that earlier passes left. Criterion counts events as elements. `gpuheap
//! replay` shows the memory that a pass takes.

#![expect(clippy::unwrap_used, reason = "a bench that fails says where")]

use std::path::Path;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use gpuheap::emu::Profile;
use gpuheap::{Block, Device, Heap, PoolKind, Stream};
use gpuheap_trace::{Op, ReadOptions, Trace};

fn replay(criterion: &mut Criterion) {
    for name in ["two_streams", "serve_threads"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/traces");
        let file = folder.join(format!("{name}.csv.gz"));
        let trace = gpuheap_trace::read(&file, &ReadOptions::default()).unwrap().remove(0);
        let mut group = criterion.benchmark_group(format!("replay-{name}"));
        group.throughput(Throughput::Elements(trace.events().len() as u64));
        for pool in PoolKind::ALL {
            let device = Device::emulated(Profile::h200()).unwrap();
            let heap = Heap::builder(&device).pool(pool).build().unwrap();
            let streams: Vec<Stream> =
                trace.streams().iter().map(|_| device.stream().unwrap()).collect();
            let mut blocks: Vec<Option<Block>> = Vec::new();
            blocks.resize_with(trace.allocations() as usize, || None);
            group.bench_function(BenchmarkId::from_parameter(pool.name()), |bencher| {
                bencher.iter(|| pass(&trace, &heap, &streams, &mut blocks));
            });
        }
    }
}

fn pass(trace: &Trace, heap: &Heap, streams: &[Stream], blocks: &mut [Option<Block>]) {
    for event in trace.events() {
        let stream = &streams[event.stream as usize];
        match event.op {
            Op::Allocate { allocation, bytes } => {
                blocks[allocation as usize] = Some(heap.allocate(bytes, stream).unwrap());
            }
            Op::Free { allocation } => {
                if let Some(block) = blocks[allocation as usize].take() {
                    block.free_on(stream).unwrap();
                }
            }
            _ => {}
        }
    }
    blocks.iter_mut().for_each(|left| drop(left.take()));
}

criterion_group!(benches, replay);
criterion_main!(benches);
