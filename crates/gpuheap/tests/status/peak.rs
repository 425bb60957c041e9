//! Tests of high-water marks of live memory, for a heap's life and for a part of a program.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Barrier, Mutex};

use gpuheap::{Block, Device, Heap, PoolKind, Stream};
use gpuheap_pool::testing::Random;

const MIB: u64 = 1 << 20;

fn heap(device: &Device, pool: PoolKind, keeps: u64) -> Heap {
    let heap = Heap::builder(device).without_environment().pool(pool);
    heap.thread_cache(keeps).build().unwrap()
}

#[test]
fn live_peak_is_exact_across_streams() {
    for pool in PoolKind::ALL {
        let device = Device::open("emulated:1GiB").unwrap();
        let heap = heap(&device, pool, 16 * MIB);
        let streams = [device.stream().unwrap(), device.stream().unwrap()];
        for round in 0..10 {
            drop(heap.allocate(MIB, &streams[round % 2]).unwrap());
            drop(heap.allocate(1000, &streams[round % 2]).unwrap());
        }
        assert_eq!(heap.usage().unwrap().live_peak, MIB, "{pool}");
    }
}

/// One thread has blocks on several streams, and frees them in any order and on any stream.
#[test]
fn live_peak_is_exact_on_thread() {
    for pool in PoolKind::ALL {
        for seed in 0..8 {
            let device = Device::open("emulated:4GiB").unwrap();
            let heap = heap(&device, pool, 16 * MIB);
            let streams: Vec<Stream> = (0..5).map(|_| device.stream().unwrap()).collect();
            let (mut random, mut blocks) = (Random(seed), Vec::<Block>::new());
            let (mut live, mut peak) = (0, 0);
            let mut meters = Vec::new();
            for step in 0..600 {
                let stream = &streams[random.below(5) as usize];
                match random.below(20) {
                    0 => {
                        assert_eq!(heap.usage().unwrap().live_peak, peak, "{pool} {seed} {step}");
                    }
                    1 if meters.len() < 4 => meters.push((heap.meter().unwrap(), live, live)),
                    2 if !meters.is_empty() => {
                        let at = random.below(meters.len() as u64) as usize;
                        let (meter, before, peak) = meters.swap_remove(at);
                        let usage = meter.read().unwrap();
                        let figures = (usage.live_before, usage.live, usage.live_peak);
                        assert_eq!(figures, (before, live, peak), "{pool} {seed} {step}");
                    }
                    3..=11 => {
                        let bytes = match random.below(8) {
                            0 => 0,
                            1 => random.below(4 * MIB),
                            _ => 512 * random.below(8),
                        };
                        blocks.push(heap.allocate(bytes, stream).unwrap());
                        live += bytes;
                    }
                    kind if !blocks.is_empty() => {
                        let at = random.below(blocks.len() as u64) as usize;
                        let block = blocks.swap_remove(at);
                        live -= block.bytes();
                        match kind {
                            12 => block.free_on(stream).unwrap(),
                            _ => drop(block),
                        }
                    }
                    _ => {}
                }
                peak = peak.max(live);
                meters.iter_mut().for_each(|meter| meter.2 = meter.2.max(live));
            }
            let usage = heap.usage().unwrap();
            assert_eq!((usage.live, usage.live_peak), (live, peak), "{pool} {seed}");
        }
    }
}

/// A random program of one thread. It has nested parts, and a meter measures each part's memory.
struct Nested<'a> {
    heap: &'a Heap,
    streams: Vec<Stream>,
    random: Random,
    blocks: Vec<Block>,
    live: u64,
    /// For each part that has begun and not ended: live bytes at its start, and their peak since.
    parts: Vec<(u64, u64)>,
}

impl Nested<'_> {
    fn run(&mut self, depth: u32) {
        for _ in 0..self.random.below(40) {
            match self.random.below(12) {
                0 if depth < 4 => self.part(depth),
                0..=6 => {
                    let bytes = 512 * self.random.below(2000);
                    let stream = &self.streams[self.random.below(3) as usize];
                    self.blocks.push(self.heap.allocate(bytes, stream).unwrap());
                    self.live += bytes;
                }
                kind if !self.blocks.is_empty() => {
                    let at = self.random.below(self.blocks.len() as u64) as usize;
                    let block = self.blocks.swap_remove(at);
                    self.live -= block.bytes();
                    match kind {
                        7 => block.free_on(&self.streams[0]).unwrap(),
                        _ => drop(block),
                    }
                }
                _ => {}
            }
            self.parts.iter_mut().for_each(|part| part.1 = part.1.max(self.live));
        }
    }

    /// Runs a nested part, with one of three ends: after all its steps, by a return, or by a panic.
    fn part(&mut self, depth: u32) {
        self.parts.push((self.live, self.live));
        let (way, heap) = (self.random.below(4), self.heap);
        let meter = heap.meter().unwrap();
        let _ = catch_unwind(AssertUnwindSafe(|| {
            heap.scope(|_| {
                self.run(depth + 1);
                match way {
                    0 => resume_unwind(Box::new(())),
                    1 => return,
                    _ => {}
                }
                self.run(depth + 1);
            })
        }));
        let (start, most) = self.parts.pop().unwrap();
        assert_eq!(meter.read().unwrap().peak(), most - start);
    }
}

#[test]
fn nested_meter_peaks_are_exact() {
    for pool in PoolKind::ALL {
        for seed in 0..20 {
            let device = Device::open("emulated:4GiB").unwrap();
            let heap = heap(&device, pool, 16 * MIB);
            let streams = (0..3).map(|_| device.stream().unwrap()).collect();
            let (random, blocks, parts) = (Random(seed), Vec::new(), Vec::new());
            let mut nested = Nested { heap: &heap, streams, random, blocks, live: 0, parts };
            nested.part(0);
        }
    }
}

/// Each of several threads caches as much as it may. The heap's peak of live bytes is then not
/// exact, but it is off by at most the total that the threads cache.
#[test]
fn live_peak_error_is_bounded() {
    const THREADS: u64 = 4;
    const STREAMS: u64 = 2;
    const KEEPS: u64 = MIB;
    for pool in PoolKind::ALL {
        for seed in 0..4 {
            let device = Device::open("emulated:4GiB").unwrap();
            let heap = heap(&device, pool, KEEPS);
            // Figures of all threads, changed with the lock held, so that they are exact.
            let truth = Mutex::new((0_u64, 0_u64));
            let (begin, others) = (Barrier::new(THREADS as usize), Mutex::new(Vec::<Block>::new()));
            std::thread::scope(|scope| {
                for thread in 0..THREADS {
                    let (device, heap, truth) = (&device, &heap, &truth);
                    let (begin, others) = (&begin, &others);
                    scope.spawn(move || {
                        let streams: Vec<Stream> =
                            (0..STREAMS).map(|_| device.stream().unwrap()).collect();
                        let mut random = Random(seed * THREADS + thread);
                        let mut blocks = Vec::new();
                        begin.wait();
                        for _ in 0..2000 {
                            let mut truth = truth.lock().unwrap();
                            if random.below(2) == 0 || blocks.is_empty() {
                                let bytes = 512 * (1 + random.below(200));
                                let stream = &streams[random.below(STREAMS) as usize];
                                blocks.push(heap.allocate(bytes, stream).unwrap());
                                truth.0 += bytes;
                                truth.1 = truth.1.max(truth.0);
                                continue;
                            }
                            let at = random.below(blocks.len() as u64) as usize;
                            let block = blocks.swap_remove(at);
                            if random.below(4) == 0 {
                                others.lock().unwrap().push(block);
                                continue;
                            }
                            truth.0 -= block.bytes();
                            drop(block);
                            let theirs = others.lock().unwrap().pop();
                            truth.0 -= theirs.as_ref().map_or(0, Block::bytes);
                            drop(theirs);
                        }
                        let mut truth = truth.lock().unwrap();
                        truth.0 -= blocks.iter().map(Block::bytes).sum::<u64>();
                        drop(blocks);
                    });
                }
            });
            drop(others);
            let (_, peak) = *truth.lock().unwrap();
            let usage = heap.usage().unwrap();
            let bound = THREADS * STREAMS * (KEEPS + KEEPS / 4);
            let off = usage.live_peak.abs_diff(peak);
            assert!(off <= bound, "{pool} {seed}: {} and not {peak}", usage.live_peak);
            assert_eq!(usage.live, 0, "{pool} {seed}");
        }
    }
}
