//! Blocks of one stream keep their contents, however soon another stream reuses their memory.
//! Tests every policy, with frees by either of two threads, while a third thread flushes the
//! caches.
//!
//! On a GPU, the freeing streams lag behind: the kernels before a block's last use take several
//! times as long as the host needs for a whole round. A missing wait therefore shows in the
//! contents of the blocks. On the emulator, the checks also report a missing wait as a finding.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, Scope};

use gpuheap::emu::Schedule;
use gpuheap::{Block, DeviceArray, Heap, PoolKind, Stream};
use gpuheap_pool::testing::Random;

use crate::support::{PAST_SPARE, Witness, assert_all_returned, device, fill, heap, on_real_gpu};

const MIB: u64 = 1 << 20;
const STREAMS: usize = 4;
/// Number of blocks that a round allocates on the streams other than the last. The last stream then
/// reuses the memory of half of these blocks.
const BLOCKS: usize = 12;
/// Number of rounds after which the test waits for the device and checks the recorded contents.
const BURST: usize = 16;

/// Sizes in a test's rounds.
struct Shape {
    size: fn(&mut Random, usize) -> u64,
    /// Limit of the heap, so low that the last stream must reuse memory of the other streams.
    limit: u64,
    /// `true` if the last stream requests all freed memory in one block. Every second block stays
    /// live, so the requested block is stitched from freed blocks of several streams.
    in_one: bool,
}

#[test]
fn small_blocks_are_not_overwritten_early() {
    let size = |random: &mut Random, _| 256 + random.below(64 << 10);
    for pool in PoolKind::ALL {
        run(pool, &Shape { size, limit: 2 * MIB, in_one: false });
    }
}

#[test]
fn large_blocks_are_not_overwritten_early() {
    let size = |_: &mut Random, _| 4 * MIB;
    for pool in PoolKind::ALL {
        run(pool, &Shape { size, limit: 52 * MIB, in_one: false });
    }
}

#[test]
fn stitched_blocks_are_not_overwritten_early() {
    let size = |_: &mut Random, number| [2, 4, 6][number % 3] * MIB;
    run(PoolKind::Stitched, &Shape { size, limit: 48 * MIB, in_one: true });
}

fn run(pool: PoolKind, shape: &Shape) {
    // On this schedule, work is done only when it is waited for.
    let device = device(1 << 30, Schedule::OnDemand);
    // On a GPU, each slow stream adds to an array of 1 GiB. One such pass takes 0.4 ms on an H200
    // (4.8 TB/s), and three streams share this rate. The rest of a round takes the host far less.
    let (rounds, count) = if on_real_gpu() { (2048, 256 << 20) } else { (512, 16) };
    let is_driver_s = matches!(pool, PoolKind::None | PoolKind::Driver);
    let limit = match pool {
        // The driver chooses the memory to reuse, and its own pools grow by 32 MiB: allow more.
        PoolKind::None | PoolKind::Driver => 128 * MIB,
        // Each block takes at least one granule of the driver.
        PoolKind::Simple | PoolKind::Binned => {
            shape.limit.max(2 * MIB * (BLOCKS + BLOCKS / 2) as u64)
        }
        _ => shape.limit,
    };
    let builder = Heap::builder(&device).without_environment().pool(pool);
    let tight = builder.hard_limit(limit + PAST_SPARE).build().unwrap();
    let rest = tight.allocate(PAST_SPARE, &device.stream().unwrap()).unwrap();
    let beside = heap(&device, PoolKind::Split);
    let stream = |_| {
        let stream = device.stream().unwrap();
        let work = beside.on(&stream).filled(count, 0_u32).unwrap();
        (stream, work)
    };
    let mut scene = Scene {
        heap: &tight,
        streams: (0..STREAMS).map(stream).collect(),
        random: Random(17),
        shape,
        overtaken: 0,
    };
    thread::scope(|scope| {
        let other = Worker::new(scope, |(block, stream): (Block, Stream)| {
            block.free_on(&stream).unwrap();
        });
        let third = Worker::new(scope, |bytes| match bytes {
            0 => drop(tight.usage().unwrap()),
            bytes => drop(tight.reclaim(bytes).unwrap()),
        });
        for burst in 0..rounds / BURST {
            let mut witness = Witness::new(&device, BURST * 2 * BLOCKS);
            for round in 0..BURST {
                let tag = ((burst * BURST + round) % 120 * 2 + 1) as u8;
                scene.round(tag, &mut witness, &other, &third);
            }
            witness.check();
        }
    });
    let Scene { streams, overtaken, .. } = scene;
    drop((streams, rest));
    if let Some(emulator) = device.emulator().filter(|_| !is_driver_s) {
        let waits = emulator.calls_of("cuStreamWaitEvent");
        // The bound is low for `stitched`: it waits less often, because it also uses parts of
        // blocks whose work has completed meanwhile.
        assert!(waits > rounds as u64 / 4, "{pool}: {waits} waits in {rounds} rounds");
    } else if !is_driver_s {
        assert!(overtaken > rounds / 2, "{pool}: {overtaken} of {rounds} rounds were slow enough");
    }
    assert_all_returned(&device, &beside, pool.name());
    assert_all_returned(&device, &tight, pool.name());
}

struct Scene<'s> {
    heap: &'s Heap,
    /// Streams, each with an array. The work on the array takes long.
    streams: Vec<(Stream, DeviceArray<u32>)>,
    random: Random,
    shape: &'s Shape,
    /// Number of rounds in which the last stream got memory of a stream that was still working.
    overtaken: usize,
}

impl Scene<'_> {
    fn round(
        &mut self,
        tag: u8,
        witness: &mut Witness<'_>,
        other: &Worker<(Block, Stream)>,
        third: &Worker<u64>,
    ) {
        let last = self.random.below(STREAMS as u64) as usize;
        let slow: Vec<usize> = (0..STREAMS).filter(|at| *at != last).collect();
        let mut blocks = Vec::new();
        for number in 0..BLOCKS {
            let bytes = (self.shape.size)(&mut self.random, number);
            let at = self.random.below(slow.len() as u64) as usize;
            let stream = self.stream(slow[at]);
            blocks.push((self.written(bytes, tag, &stream), stream));
        }
        for at in &slow {
            self.streams[*at].1.add_assign(1).unwrap();
        }
        for (block, stream) in &blocks {
            assert!(witness.see(block, tag, stream));
        }
        let mut sizes = Vec::new();
        let mut kept = Vec::new();
        for (number, (block, stream)) in blocks.into_iter().enumerate() {
            if number % 2 == 0 {
                kept.push((block, stream));
                continue;
            }
            sizes.push(block.bytes());
            match self.random.below(2) {
                0 => block.free_on(&stream).unwrap(),
                _ => other.does((block, stream)),
            }
        }
        match self.random.below(8) {
            0 | 1 => third.does(0),
            2 => third.does(sizes[0]),
            _ => {}
        }
        if self.shape.in_one {
            sizes = vec![sizes.iter().sum()];
        }
        // Larger blocks are allocated first, while holes for them exist.
        sizes.sort_unstable_by(|one, another| another.cmp(one));
        let stream = self.stream(last);
        for bytes in sizes {
            let block = self.written(bytes, tag + 1, &stream);
            kept.push((block, stream.clone()));
        }
        // Queries streams only on a real GPU. On the emulator, a query would order the host after
        // the stream's work, and so hide missing waits from the checks.
        if on_real_gpu() && slow.iter().any(|at| !self.streams[*at].0.is_done().unwrap()) {
            self.overtaken += 1;
        }
        for (block, stream) in kept {
            let tag = if stream.id() == self.streams[last].0.id() { tag + 1 } else { tag };
            assert!(witness.see(&block, tag, &stream));
            block.free_on(&stream).unwrap();
        }
    }

    fn stream(&self, at: usize) -> Stream {
        self.streams[at].0.clone()
    }

    fn written(&self, bytes: u64, tag: u8, stream: &Stream) -> Block {
        let block = self.heap.allocate(bytes, stream).unwrap();
        fill(&block, tag, stream);
        block
    }
}

/// A thread that does one task at a time. The thread that requested the task waits meanwhile.
struct Worker<T> {
    tasks: Sender<T>,
    done: Receiver<()>,
}

impl<T: Send> Worker<T> {
    fn new<'s>(scope: &'s Scope<'s, '_>, work: impl Fn(T) + Send + 's) -> Worker<T>
    where
        T: 's,
    {
        let (tasks, given) = channel();
        let (tell, done) = channel();
        scope.spawn(move || {
            for task in given {
                work(task);
                tell.send(()).unwrap();
            }
        });
        Worker { tasks, done }
    }

    fn does(&self, task: T) {
        self.tasks.send(task).unwrap();
        self.done.recv().unwrap();
    }
}
