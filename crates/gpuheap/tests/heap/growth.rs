//! Growth of a `stitched` heap: how much more than live memory it reserves, and when it maps.

use std::path::Path;

use gpuheap::emu::Profile;
use gpuheap::{Block, Device, Heap, HeapBuilder, Stream};
use gpuheap_trace::{Op, ReadOptions, Trace};

const MIB: u64 = 1 << 20;

/// Calls that change what is mapped.
const MAPPING_CALLS: [&str; 5] =
    ["cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease"];

/// A heap that replays a trace on an emulated device of its own.
struct Replay {
    device: Device,
    heap: Heap,
    streams: Vec<Stream>,
    trace: Trace,
}

impl Replay {
    fn new(name: &str, memory: u64, setup: impl FnOnce(HeapBuilder) -> HeapBuilder) -> Replay {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/traces");
        let file = folder.join(format!("{name}.csv.gz"));
        let trace = gpuheap_trace::read(&file, &ReadOptions::default()).unwrap().remove(0);
        let profile = Profile::with_memory(memory).without_context();
        let device = Device::emulated(profile).unwrap();
        let heap = setup(Heap::builder(&device)).build().unwrap();
        let streams = trace.streams().iter().map(|_| device.stream().unwrap()).collect();
        Replay { device, heap, streams, trace }
    }

    /// Replays the trace and frees what it left live. Returns the number of each mapping call.
    fn pass(&self) -> [u64; 5] {
        let calls = || {
            let emulator = self.device.emulator().unwrap();
            MAPPING_CALLS.map(|symbol| emulator.calls_of(symbol))
        };
        let before = calls();
        let mut blocks: Vec<Option<(Block, &Stream)>> = Vec::new();
        blocks.resize_with(self.trace.allocations() as usize, || None);
        for event in self.trace.events() {
            let stream = &self.streams[event.stream as usize];
            match event.op {
                Op::Allocate { allocation, bytes } => {
                    let block = self.heap.allocate(bytes, stream).unwrap();
                    blocks[allocation as usize] = Some((block, stream));
                }
                Op::Free { allocation } => {
                    if let Some((block, _)) = blocks[allocation as usize].take() {
                        block.free_on(stream).unwrap();
                    }
                }
                _ => {}
            }
        }
        for (block, stream) in blocks.into_iter().flatten() {
            block.free_on(stream).unwrap();
        }
        let after = calls();
        std::array::from_fn(|at| after[at] - before[at])
    }
}

const TRACES: [&str; 7] = [
    "cupy_groupby",
    "gpt_train",
    "gpt_train_short",
    "llama_ckpt",
    "llm_serve",
    "serve_threads",
    "two_streams",
];

#[test]
fn a_program_far_from_the_devices_end_never_stitches_and_maps_once() {
    for name in TRACES {
        let device = 128 << 30;
        let replay = Replay::new(name, device, |builder| builder);
        let [created, mapped, ..] = replay.pass();
        assert_eq!(mapped, created, "{name}: each piece of memory is mapped once");
        let usage = replay.heap.usage().unwrap();
        assert!(created <= 20 + usage.live_peak / (32 * MIB), "{name}: {created} pieces");
        let most = usage.live_peak / 100 * 105 + device / 50;
        assert!(usage.reserved_peak <= most, "{name}: {}", usage.reserved_peak);
        assert_eq!(replay.pass(), [0; 5], "{name}: the second pass");
    }
}

#[test]
fn a_program_that_needs_the_whole_limit_packs() {
    for name in TRACES {
        let live = Replay::new(name, 128 << 30, |builder| builder);
        live.pass();
        let live = live.heap.usage().unwrap().live_peak;
        let limit = (live / 100 * 103 + 64 * MIB).next_multiple_of(2 * MIB);
        let replay = Replay::new(name, 128 << 30, |builder| builder.hard_limit(limit));
        let [created, mapped, ..] = replay.pass();
        assert!(created > 100 && mapped >= created, "{name}: {created} pieces");
    }
}

#[test]
fn a_heap_without_slack_packs_on_any_device() {
    let replay = Replay::new("serve_threads", 128 << 30, |builder| builder.slack(0.0));
    let [created, mapped, ..] = replay.pass();
    assert!(mapped > 2 * created, "{created} pieces, {mapped} mappings");
    let usage = replay.heap.usage().unwrap();
    assert!(usage.reserved_peak <= usage.live_peak / 100 * 104, "{}", usage.reserved_peak);
}
