//! Runs random programs with several heaps and several threads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, RwLock};
use std::time::{Duration, Instant};

use gpuheap::emu::{Options, Profile, Schedule};
use gpuheap::{Device, Error, Heap, MemoryKind, PoolKind, Stream};
use gpuheap_pool::testing::Random;

use super::{Foreign, MIB, PIECE};
use crate::support::{assert_all_returned, device, fill, heap, on_real_gpu};

/// Number of blocks of `PIECE` bytes that threads may still take, so that live memory never exceeds
/// the device.
struct Pieces {
    left: Mutex<u64>,
    more: Condvar,
}

impl Pieces {
    fn take(&self) {
        let mut left = self.left.lock().unwrap();
        while *left == 0 {
            left = self.more.wait(left).unwrap();
        }
        *left -= 1;
    }

    fn give(&self, pieces: u64) {
        *self.left.lock().unwrap() += pieces;
        self.more.notify_all();
    }
}

fn length() -> Duration {
    let seconds = std::env::var("GPUHEAP_SOAK_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(3))
}

/// Makes two to four heaps of random pools.
fn some_heaps(device: &Device, random: &mut Random) -> Vec<Heap> {
    let pools = (0..2 + random.below(3)).map(|_| PoolKind::ALL[random.below(6) as usize]);
    pools.map(|pool| heap(device, pool)).collect()
}

fn names(heaps: &[Heap]) -> String {
    heaps.iter().map(|heap| heap.pool().name()).collect::<Vec<_>>().join(" ")
}

/// All requests are of one size, and the threads together never request more than the device has.
/// Each request therefore has to succeed, whichever heaps cache the other memory, and whatever the
/// other threads do.
#[test]
fn concurrent_heaps_share_all_memory() {
    const THREADS: u64 = 5;
    let end = Instant::now() + length();
    for seed in 0.. {
        if Instant::now() > end {
            break;
        }
        let mut random = Random(seed);
        let device = device(1024 * MIB, Schedule::Seeded(seed));
        // On a real GPU, a pool of the driver takes more than is requested: it needs spare pieces.
        let spare = if on_real_gpu() { 4 } else { 1 };
        let _rest = Foreign::all_but(&device, 16 * PIECE);
        let heaps = some_heaps(&device, &mut random);
        let what = format!("seed {seed}: {}", names(&heaps));
        let pieces = Pieces { left: Mutex::new(16 - spare), more: Condvar::new() };
        let requests = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (device, heaps, pieces, what) = (&device, &heaps, &pieces, &what);
                let requests = &requests;
                scope.spawn(move || {
                    let mut random = Random(seed * THREADS + thread + 1000);
                    let stream = device.stream().unwrap();
                    let mut held = Vec::new();
                    for _ in 0..60 {
                        // For 40 requests in a row, most use the same heap. So in turn, each heap
                        // caches nearly all of the memory.
                        let turn = requests.fetch_add(1, Ordering::Relaxed) / 40;
                        let turn = turn + u64::from(random.below(4) == 0);
                        let heap = &heaps[(turn % heaps.len() as u64) as usize];
                        // A thread must not wait for a piece that it holds itself, so it frees its
                        // pieces first.
                        if held.len() == 3 || random.below(3) == 0 {
                            let freed = held.len() as u64;
                            held.clear();
                            pieces.give(freed);
                        }
                        pieces.take();
                        let block = heap.allocate(PIECE, &stream);
                        let block = block.unwrap_or_else(|error| panic!("{what}: {error}"));
                        fill(&block, thread as u8, &stream);
                        held.push(block);
                    }
                    let freed = held.len() as u64;
                    held.clear();
                    pieces.give(freed);
                });
            }
        });
        for heap in &heaps {
            assert_all_returned(&device, heap, &what);
        }
    }
}

/// If a request fails while the other threads are stopped, it also fails after a manual flush.
#[test]
fn failing_request_fails_after_flush_too() {
    let end = Instant::now() + length();
    let (mut failed, mut reached) = ([0; KINDS.len()], 0);
    for seed in 0.. {
        // The test runs until requests for device memory (0) and pinned memory (2) have failed. On
        // a real GPU, pinned memory need not run out. Unified memory (1) may exceed the device.
        let has_failed = failed[0] > 0 && (failed[2] > 0 || on_real_gpu());
        if Instant::now() > end && (has_failed || seed >= MOST_PROGRAMS) {
            break;
        }
        let mut random = Random(seed);
        let profile = Profile::with_memory(256 * MIB).without_context();
        let profile = Profile { pinned_limit: Some(24 * MIB), ..profile };
        let device = match on_real_gpu() {
            true => device(256 * MIB, Schedule::Seeded(seed)),
            false => Device::emulated_with(Options {
                schedule: Schedule::Seeded(seed),
                ..Options::with_device(profile)
            })
            .unwrap(),
        };
        let _rest = Foreign::all_but(&device, 4 * PIECE);
        let heaps = some_heaps(&device, &mut random);
        let program = Program {
            what: format!("seed {seed}: {}", names(&heaps)),
            device: &device,
            heaps: &heaps,
            everybody: RwLock::new(()),
            handed_over: Mutex::new(Vec::new()),
            failed: Default::default(),
        };
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let program = &program;
                scope.spawn(move || program.run(Random(seed * 3 + thread + 1000)));
            }
        });
        let Program { what, failed: short, handed_over, .. } = program;
        drop(handed_over);
        for (sum, short) in failed.iter_mut().zip(short) {
            *sum += short.into_inner();
        }
        for heap in &heaps {
            reached += heap.usage().unwrap().stats.given_back;
            assert_all_returned(&device, heap, &what);
        }
    }
    let least = if on_real_gpu() { failed[0] } else { failed[0].min(failed[2]) };
    assert!(least > 0 && reached > 0, "{failed:?} failed by kind, {reached} bytes went back");
}

/// Number of programs after which the test ends, once its time is up. Among so many programs, some
/// requests for device memory and some for pinned memory fail, even on a slow machine.
const MOST_PROGRAMS: u64 = 200;

/// Kinds of memory that programs request.
const KINDS: [MemoryKind; 3] = [MemoryKind::Device, MemoryKind::Unified, MemoryKind::Pinned];

/// Memory of any kind. Dropping it frees the memory.
type Held = Box<dyn Send>;

/// A program that uses several heaps in several threads.
struct Program<'a> {
    what: String,
    device: &'a Device,
    heaps: &'a [Heap],
    /// A thread locks this for reading during each operation. A thread that locks it for writing
    /// stops all other threads.
    everybody: RwLock<()>,
    /// Blocks that one thread allocated and another frees.
    handed_over: Mutex<Vec<Held>>,
    /// Number of requests of each kind that failed while the requesting thread ran alone.
    failed: [AtomicU64; KINDS.len()],
}

impl Program<'_> {
    fn run(&self, mut random: Random) {
        let streams = [self.device.stream().unwrap(), self.device.stream().unwrap()];
        let mut held: Vec<Held> = Vec::new();
        for _ in 0..80 {
            // For some requests, the other threads are stopped before the first attempt and go on
            // after the second attempt.
            let alone = random.below(3) == 0;
            let (_others, _nobody) = match alone {
                true => (None, Some(self.everybody.write().unwrap())),
                false => (Some(self.everybody.read().unwrap()), None),
            };
            if random.below(5) < 2 && !held.is_empty() {
                let block = held.swap_remove(random.below(held.len() as u64) as usize);
                match random.below(4) {
                    0 => self.hand_over(block),
                    _ => drop(block),
                }
                continue;
            }
            let heap = &self.heaps[random.below(self.heaps.len() as u64) as usize];
            let stream = &streams[random.below(2) as usize];
            let bytes = match random.below(4) {
                0 => 1 + random.below(64 << 10),
                1 => 1 + random.below(4 * MIB),
                2 => 1 + random.below(40 * MIB),
                _ => (1 + random.below(120)) * MIB,
            };
            let kind = [0, 0, 0, 0, 1, 2][random.below(6) as usize];
            match self.make(heap, stream, KINDS[kind], bytes) {
                Ok(made) => held.push(made),
                Err(error) => {
                    let evidence = error.out_of_memory();
                    let evidence = evidence.unwrap_or_else(|| panic!("{}: {error}", self.what));
                    if alone {
                        assert_eq!(evidence.pending, 0, "{}: {error}", self.what);
                        self.failed[kind].fetch_add(1, Ordering::Relaxed);
                        self.device.flush().unwrap();
                        let again = self.make(heap, stream, KINDS[kind], bytes);
                        assert!(again.is_err(), "{}: there was memory: {error}", self.what);
                    }
                    held.pop();
                }
            }
        }
        // While another thread has stopped all others for its request, no memory may be freed.
        let _others = self.everybody.read().unwrap();
        held.clear();
    }

    /// Takes memory and fills it. Takes less of host memory, because host memory is scarcer.
    fn make(
        &self,
        heap: &Heap,
        stream: &Stream,
        kind: MemoryKind,
        bytes: u64,
    ) -> Result<Held, Error> {
        let length = if kind == MemoryKind::Pinned { bytes % (12 * MIB) + 1 } else { bytes };
        if kind != MemoryKind::Device {
            return Ok(Box::new(heap.on(stream).kind(kind).filled(length as usize, 1_u8)?));
        }
        let block = heap.allocate(bytes, stream)?;
        fill(&block, 1, stream);
        Ok(Box::new(block))
    }

    /// Passes memory to another thread, and frees some memory that was passed before.
    fn hand_over(&self, made: Held) {
        let mut handed_over = self.handed_over.lock().unwrap();
        handed_over.push(made);
        let theirs = if handed_over.len() > 2 { Some(handed_over.swap_remove(0)) } else { None };
        drop(handed_over);
        drop(theirs);
    }
}
