//! 16 threads use one heap at 95 % of its limit, for `GPUHEAP_SOAK_SECONDS` (5, and 20 in CI). The
//! test runs on the emulator with its checks on, or on the device that `GPUHEAP_TEST_DEVICE` names.
//! It is a separate test target, so that CI can run it for that long.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

#[path = "heap/support.rs"]
#[expect(dead_code, reason = "shared with the tests of the heap, which use the rest")]
mod support;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, RwLock};
use std::time::{Duration, Instant};

use gpuheap::emu::Schedule;
use gpuheap::{Device, DeviceArray, Error, Heap, PoolKind, Stream};
use gpuheap_pool::testing::Random;
use support::{assert_all_returned, device};

const THREADS: u64 = 16;
const LIMIT: u64 = 64 << 20;
/// Bytes by which some requests are larger than the others. The larger requests do not fit into the
/// segments of the other requests, so the heap has to give back such segments to serve them.
const LARGER: u64 = 20 << 20;
/// Minimum number of steps of each thread, even after the time is up. The test needs failed
/// requests. With 1000 steps, some requests fail even on a loaded machine.
const LEAST_STEPS: u64 = 1000;
/// Total bytes that the threads try to keep live.
const LEVEL: u64 = LIMIT / 100 * 95;

#[test]
fn threads_at_limit_fail_for_live() {
    let seconds = std::env::var("GPUHEAP_SOAK_SECONDS").ok().and_then(|text| text.parse().ok());
    let total = Duration::from_secs(seconds.unwrap_or(5));
    for (pool, share) in [(PoolKind::Stitched, 2), (PoolKind::Split, 2), (PoolKind::Binned, 1)] {
        let device = device(4 << 30, Schedule::Seeded(23));
        let heap = Heap::builder(&device).pool(pool).hard_limit(LIMIT).build().unwrap();
        let soak = Soak {
            heap: &heap,
            device: &device,
            end: Instant::now() + total * share / 5,
            live: AtomicU64::new(0),
            short: AtomicU64::new(0),
            tried_again: AtomicU64::new(0),
            everybody: RwLock::new(()),
            // `binned` would round 20 MiB up to 32 MiB, so two such requests would fill the limit.
            larger: if pool == PoolKind::Binned { 0 } else { LARGER },
            handed_over: Mutex::new(Vec::new()),
        };
        std::thread::scope(|scope| {
            for seed in 0..THREADS {
                let soak = &soak;
                scope.spawn(move || soak.run(seed));
            }
        });
        let Soak { short, tried_again, handed_over, .. } = soak;
        drop(handed_over);
        let usage = heap.usage().unwrap();
        assert_eq!((usage.live, usage.stats.live_allocations), (0, 0), "{pool}: {usage:?}");
        assert!(usage.live_peak >= LEVEL / 2, "{pool}: it never came near: {usage:?}");
        assert!(usage.reserved_peak <= LIMIT, "{pool}: {usage:?}");
        assert!(usage.stats.allocations > 1000, "{pool}: {usage:?}");
        // Requests fail although the live bytes stay below 95 % of the limit. `binned` rounds up to
        // powers of two, and `split` uses a segment of one class of size for no other class.
        let (short, again) = (short.into_inner(), tried_again.into_inner());
        assert!(short > again && again > 0, "{pool}: {short} times short, {again} tried again");
        assert_all_returned(&device, &heap, pool.name());
    }
}

/// State that the threads share.
struct Soak<'a> {
    heap: &'a Heap,
    device: &'a Device,
    end: Instant,
    live: AtomicU64,
    short: AtomicU64,
    /// Number of failed requests that a thread tried again while it stopped all other threads.
    tried_again: AtomicU64,
    /// A thread locks this for reading while it acts, and for writing to stop all other threads.
    everybody: RwLock<()>,
    /// Bytes that are added to every 16th request on average; 0 to add nothing.
    larger: u64,
    /// Arrays that one thread made and another checks and frees, each with the number in it.
    handed_over: Mutex<Vec<(DeviceArray<u64>, u64)>>,
}

impl Soak<'_> {
    fn run(&self, seed: u64) {
        let mut random = Random(seed);
        let streams = [self.device.stream().unwrap(), self.device.stream().unwrap()];
        let mut held: Vec<(DeviceArray<u64>, u64)> = Vec::new();
        for step in 0.. {
            if step >= LEAST_STEPS && Instant::now() >= self.end {
                break;
            }
            // For some requests, the other threads are stopped before the first attempt and go on
            // after the second attempt.
            let alone = random.below(8) == 0;
            let (_others, _nobody) = match alone {
                true => (None, Some(self.everybody.write().unwrap())),
                false => (Some(self.everybody.read().unwrap()), None),
            };
            let mut bytes = (1 << (10 + random.below(11))) | (random.below(1 << 10) * 8);
            if self.larger > 0 && random.below(16) == 0 {
                bytes += self.larger;
            }
            if self.live.fetch_add(bytes, Ordering::Relaxed) + bytes > LEVEL {
                self.live.fetch_sub(bytes, Ordering::Relaxed);
                self.give_up_one(&mut held, &mut random, &streams);
                continue;
            }
            let number = random.below(u64::MAX);
            let target = self.heap.on(&streams[random.below(2) as usize]);
            match target.filled(bytes as usize / 8, number) {
                Ok(array) => held.push((array, number)),
                Err(error) => {
                    self.live.fetch_sub(bytes, Ordering::Relaxed);
                    self.short.fetch_add(1, Ordering::Relaxed);
                    // The last attempt was made with the other threads paused, and the error has
                    // the figures of that attempt. They show that a manual reclaim would not have
                    // helped.
                    let evidence = error.out_of_memory().unwrap_or_else(|| panic!("{error}"));
                    assert!(evidence.largest_cached_block < evidence.requested, "{error}");
                    assert_eq!(evidence.pending, 0, "{error}");
                    if alone {
                        self.try_again(&error, || target.filled(bytes as usize / 8, number));
                    }
                    self.give_up_one(&mut held, &mut random, &streams);
                }
            }
        }
        for held in held {
            // Waits while a thread has stopped all others: that thread relies on no memory being
            // freed.
            let _others = self.everybody.read().unwrap();
            self.check(held);
        }
    }

    /// Tries a failed request again after a manual reclaim. The request must fail again: the heap
    /// reclaimed before the failure, and the stopped threads freed nothing since.
    fn try_again(&self, error: &Error, request: impl FnOnce() -> Result<DeviceArray<u64>, Error>) {
        let reclaimed = self.heap.reclaim_all().unwrap();
        assert!(request().is_err(), "there was memory after {reclaimed} bytes went back: {error}");
        self.tried_again.fetch_add(1, Ordering::Relaxed);
    }

    /// Frees one array, or passes it to another thread and frees an array of another thread.
    fn give_up_one(
        &self,
        held: &mut Vec<(DeviceArray<u64>, u64)>,
        random: &mut Random,
        streams: &[Stream; 2],
    ) {
        if held.is_empty() {
            let other = self.handed_over.lock().unwrap().pop();
            match other {
                Some(other) => self.check(other),
                None => std::thread::yield_now(),
            }
            return;
        }
        let (array, number) = held.swap_remove(random.below(held.len() as u64) as usize);
        match random.below(4) {
            0 => {
                let mut handed_over = self.handed_over.lock().unwrap();
                handed_over.push((array, number));
                let other =
                    if handed_over.len() > 8 { Some(handed_over.swap_remove(0)) } else { None };
                drop(handed_over);
                other.into_iter().for_each(|other| self.check(other));
            }
            // The array is used on the thread's other stream and freed there immediately, without a
            // wait.
            1 => {
                array.device_ptr(&streams[random.below(2) as usize]).unwrap();
                self.live.fetch_sub(array.bytes(), Ordering::Relaxed);
            }
            _ => self.check((array, number)),
        }
    }

    /// Checks that no other thread overwrote the array, and frees it.
    fn check(&self, (array, number): (DeviceArray<u64>, u64)) {
        let length = array.len();
        let ends = [array.slice(..1).unwrap(), array.slice(length - 1..).unwrap()];
        for end in ends {
            assert_eq!(end.to_vec().unwrap(), [number], "of {length}");
        }
        self.live.fetch_sub(array.bytes(), Ordering::Relaxed);
    }
}
