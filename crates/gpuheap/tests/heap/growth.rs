//! Tests of a `stitched` heap's growth. They check its map calls, and the memory that it reserves
//! beyond live memory.

use std::path::Path;

use gpuheap::emu::Profile;
use gpuheap::{Block, Device, Heap, HeapBuilder, Stream};
use gpuheap_trace::{Op, ReadOptions, Trace};

const MIB: u64 = 1 << 20;

/// Calls that change mappings.
const MAPPING_CALLS: [&str; 5] =
    ["cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease"];

/// A heap that replays a trace on a separate emulated device.
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

    /// Replays the trace and frees the blocks that the trace left live. Returns the number of calls
    /// of each mapping function.
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
fn roomy_device_never_stitches() {
    for name in TRACES {
        let device = 128 << 30;
        let replay = Replay::new(name, device, |builder| builder);
        let [created, mapped, ..] = replay.pass();
        assert_eq!(mapped, created, "{name}: each piece of memory is mapped once");
        let usage = replay.heap.usage().unwrap();
        // The heap grows in pieces of 16 MiB up to the first GiB, and in larger pieces after that.
        let small = (usage.live_peak / (16 * MIB)).min(64);
        let pieces = 20 + small + usage.live_peak / (64 * MIB);
        assert!(created <= pieces, "{name}: {created} pieces");
        let most = usage.live_peak / 100 * 105 + device / 50;
        assert!(usage.reserved_peak <= most, "{name}: {}", usage.reserved_peak);
        assert_eq!(replay.pass(), [0; 5], "{name}: the second pass");
    }
}

#[test]
fn program_at_limit_packs() {
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
fn heap_without_slack_packs() {
    let replay = Replay::new("serve_threads", 128 << 30, |builder| builder.slack(0.0));
    let [created, mapped, ..] = replay.pass();
    assert!(mapped > 2 * created, "{created} pieces, {mapped} mappings");
    let usage = replay.heap.usage().unwrap();
    assert!(usage.reserved_peak <= usage.live_peak / 100 * 104, "{}", usage.reserved_peak);
}

/// A program that needed most of a GiB frees all blocks but one. The test varies the position of
/// that block.
#[test]
fn flush_leaves_two_small_pieces() {
    const BLOCK: u64 = 10 * MIB;
    for kept in [0, 17, 50, 99] {
        let device = Device::emulated(Profile::with_memory(128 << 30).without_context()).unwrap();
        let heap = Heap::builder(&device).build().unwrap();
        let stream = device.stream().unwrap();
        let mut blocks: Vec<Block> =
            (0..100).map(|_| heap.allocate(BLOCK, &stream).unwrap()).collect();
        let kept = blocks.swap_remove(kept);
        drop(blocks);
        let report = heap.flush().unwrap();
        assert_eq!(heap.reclaim_all().unwrap(), 0);
        let reserved = heap.usage().unwrap().reserved;
        assert!(reserved <= 2 * 16 * MIB, "{reserved} bytes");
        let [device] = report.kinds[..] else { panic!("device memory alone: {report}") };
        assert_eq!((device.held, device.held_free), (reserved, reserved - BLOCK));
        assert!((1..=2).contains(&device.held_pieces), "{report}");
        drop(kept);
    }
}

/// The second GiB of a heap may be taken in pieces of 128 MiB, but the first GiB may not.
#[test]
fn pieces_grow_with_reserved_memory() {
    let device = Device::emulated(Profile::with_memory(128 << 30).without_context()).unwrap();
    let heap = Heap::builder(&device).build().unwrap();
    let stream = device.stream().unwrap();
    let emulator = device.emulator().unwrap();
    let created = || emulator.calls_of("cuMemCreate");
    let first = heap.allocate(1 << 30, &stream).unwrap();
    assert!((64..72).contains(&created()), "{} pieces", created());
    let before = created();
    let second = heap.allocate(1 << 30, &stream).unwrap();
    assert!(created() - before <= 10, "{} pieces", created() - before);
    drop((first, second));
}
