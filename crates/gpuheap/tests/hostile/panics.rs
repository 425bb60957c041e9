//! Tests of panics inside every closure and every trait implementation that the library calls.

use std::cell::Cell;
use std::collections::HashMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytemuck::{Pod, Zeroable};
use gpuheap::adapt::Upload;
use gpuheap::emu::Schedule;
use gpuheap::{Adapt, DeviceArray, Diagonal, Error, Heap, PoolKind, RunsOut, Tracking};

use crate::support::{KINDS, Neighbours, assert_clean, device, heap, heaps};

const PLANNED: &str = "as planned";

/// Runs `work`, and asserts that it panics with [`PLANNED`].
fn panics<R>(work: impl FnOnce() -> R) {
    let work = AssertUnwindSafe(|| drop(work()));
    let panic = catch_unwind(work).expect_err("it does not panic");
    assert_eq!(panic.downcast_ref::<&str>(), Some(&PLANNED));
}

/// Panics with [`PLANNED`]. The return type is not `!`, so that code may follow the call.
fn boom() {
    panic_any(PLANNED);
}

/// A panic payload that panics again when it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("a bomb");
        }
    }
}

#[test]
fn in_scopes() {
    for (device, heap, pool) in heaps(Schedule::Immediate) {
        for kind in KINDS {
            let target = heap.target().unwrap().kind(kind);
            let (neighbours, victim) =
                Neighbours::around(&target, |target| target.filled(100, 9_u8).unwrap());
            let forget = |value: u8| std::mem::forget(target.filled(100, value).unwrap());
            panics(|| {
                heap.thread_scope(|_| {
                    forget(1);
                    panics(|| heap.scope(|_| heap.thread_scope(|_| panic_any(PLANNED))));
                    forget(2);
                    let mut batches = target.batches([[1_u8; 100], [2; 100]]).prefetch(1);
                    std::mem::forget(batches.next());
                    panics(|| {
                        heap.thread_scope(|_| {
                            drop(batches.next());
                            boom();
                        })
                    });
                    std::mem::forget(batches);
                    panic_any(PLANNED)
                })
            });
            assert_eq!(heap.usage_of(kind).unwrap().live, 8 * 512 + 100, "{pool}: {kind}");
            // The thread is no longer in a scope.
            let after = target.filled(3, 1_u8).unwrap();
            assert_eq!(heap.thread_scope(|_| ()).1.freed, 0);
            assert_eq!((after.len(), victim.to_vec().unwrap()), (3, vec![9; 100]));
            neighbours.check(pool);
            drop((neighbours, victim, after));
        }
        assert_clean(&device, &heap, pool);
    }
}

/// An error that claims, truly or not, that memory ran out, and how many bytes are missing.
struct Lie(bool, Option<u64>);

impl RunsOut for Lie {
    fn is_out_of_memory(&self) -> bool {
        self.0
    }

    fn missing(&self) -> Option<u64> {
        self.1
    }
}

#[test]
fn in_retried_calls() {
    for (device, heap, pool) in heaps(Schedule::Immediate) {
        let stream = device.stream().unwrap();
        drop(heap.allocate(1 << 20, &stream).unwrap());
        for nth in 0..5 {
            let calls = Cell::new(0);
            let call = || -> Result<(), Lie> {
                calls.set(calls.get() + 1);
                let _block = heap.allocate(1000, &stream);
                if calls.get() > nth { panic_any(PLANNED) } else { Err(Lie(true, Some(nth))) }
            };
            // `call` panics at its call number `nth + 1`. `retry` may give up before that.
            let done = catch_unwind(AssertUnwindSafe(|| heap.retry(call)));
            assert!(done.is_err() || calls.get() <= nth, "{pool}: {nth}");
        }
        for missing in [None, Some(0), Some(1), Some(u64::MAX)] {
            let calls = Cell::new(0);
            let count = || calls.set(calls.get() + 1);
            assert!(
                heap.retry(|| -> Result<(), Lie> { Err((count(), Lie(true, missing)).1) }).is_err()
            );
            assert!((1..100).contains(&calls.get()), "{pool}: {}", calls.get());
        }
        assert_clean(&device, &heap, pool);
    }
}

#[test]
fn in_reclaimers() {
    for pool in PoolKind::ALL {
        let device = device(96 << 20, Schedule::Immediate);
        let heap = Arc::new(heap(&device, pool));
        let asked = Arc::new(AtomicU64::new(0));
        let target = heap.target().unwrap();
        let (neighbours, most) =
            Neighbours::around(&target, |target| target.filled(60 << 20, 1_u8).unwrap());
        let all: [fn(&Heap) -> u64; 6] = [
            |_| panic_any(PLANNED),
            |_| panic_any(Bomb),
            |_| u64::MAX,
            |heap| heap.target().unwrap().filled(64 << 20, 1_u8).map_or(0, |_| u64::MAX),
            |heap| heap.reclaim_all().unwrap_or(3),
            |heap| heap.flush().map_or(1, |report| report.given_back()),
        ];
        let registered: Vec<_> = all
            .into_iter()
            .map(|one| {
                let (heap, asked) = (Arc::downgrade(&heap), asked.clone());
                heap.upgrade().unwrap().register_reclaimer(move |_| {
                    asked.fetch_add(1, Ordering::Relaxed);
                    heap.upgrade().map_or(0, |heap| one(&heap))
                })
            })
            .collect();
        for turn in 1..4 {
            let before = asked.load(Ordering::Relaxed);
            let error = target.filled(40 << 20, 1_u8).unwrap_err();
            assert!(error.out_of_memory().is_some(), "{pool}: {error}");
            let more = asked.load(Ordering::Relaxed) - before;
            assert!(more >= all.len() as u64, "{pool}: {turn}: asked {more} times");
            neighbours.check(pool.name());
        }
        drop(registered);
        let before = asked.load(Ordering::Relaxed);
        assert!(target.filled(40 << 20, 1_u8).is_err());
        assert_eq!(asked.load(Ordering::Relaxed), before);
        drop((neighbours, most));
        assert_clean(&device, &heap, pool.name());
    }
}

#[test]
fn with_a_device_current() {
    let (one, other) = (device(1 << 30, Schedule::Immediate), device(1 << 30, Schedule::Immediate));
    let heap = heap(&one, PoolKind::Split);
    let array = heap.target().unwrap().filled(10, 1_u8).unwrap();
    panics(|| one.with_current(|_| panic_any(PLANNED)));
    panics(|| {
        one.with_current(|_| other.with_current(|_| array.to_vec().map(|_| panic_any(PLANNED))))
    });
    other.with_current(|_| assert_eq!(array.copy().unwrap().to_vec().unwrap(), [1; 10])).unwrap();
    drop(array);
    assert_clean(&one, &heap, "current");
}

/// An iterator that panics at some items and then continues.
struct Items(usize);

impl Iterator for Items {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        self.0 += 1;
        match self.0 {
            3 | 4 | 7 => panic_any(PLANNED),
            9.. => None,
            nth => Some(vec![nth as u8; 5000]),
        }
    }
}

#[test]
fn in_items_of_batches() {
    for (device, heap, pool) in heaps(Schedule::Immediate) {
        let target = heap.target().unwrap();
        for ahead in [0, 1, 3] {
            let mut batches = target.batches(Items(0)).prefetch(ahead);
            let (mut seen, mut panicked) = (Vec::new(), 0);
            loop {
                match catch_unwind(AssertUnwindSafe(|| batches.next())) {
                    Ok(Some(batch)) => seen.push(batch.unwrap().to_vec().unwrap()[4999]),
                    Ok(None) => break,
                    Err(_) => panicked += 1,
                }
            }
            assert_eq!((seen, panicked), (vec![1, 2, 5, 6, 8], 3), "{pool}: {ahead} ahead");
            drop(batches);
            std::thread::scope(|scope| {
                let mut batches = target.batches(Items(0)).prefetch_on(scope, ahead).unwrap();
                let first: Vec<u8> = batches
                    .by_ref()
                    .take(2)
                    .map(|batch| batch.unwrap().to_vec().unwrap()[0])
                    .collect();
                assert_eq!(first, [1, 2]);
                panics(|| batches.next());
                assert!(batches.next().is_none());
            });
        }
        assert_clean(&device, &heap, pool);
    }
}

/// A key that panics when it is cloned or hashed for the nth time.
#[derive(PartialEq, Eq)]
struct Key<'a>(&'a Cell<u32>, u32);

impl Key<'_> {
    fn count(&self) {
        self.0.set(self.0.get().wrapping_sub(1));
        if self.0.get() == 0 {
            panic_any(PLANNED);
        }
    }
}

impl Clone for Key<'_> {
    fn clone(&self) -> Self {
        self.count();
        Key(self.0, self.1)
    }
}

impl Hash for Key<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.count();
        self.1.hash(state);
    }
}

/// An adapt rule that panics at its nth use.
struct Fuse<'a>(&'a Cell<u32>, Vec<u8>);

impl Adapt<Upload> for Fuse<'_> {
    type Output = DeviceArray<u8>;

    fn adapt(&self, to: &Upload) -> Result<DeviceArray<u8>, Error> {
        let adapted = self.1.adapt(to);
        Key(self.0, 0).count();
        adapted
    }
}

#[test]
#[expect(clippy::mutable_key_type, reason = "the count is not hashed")]
fn in_rules_and_keys() {
    for (device, heap, pool) in heaps(Schedule::Immediate) {
        for kind in KINDS {
            let target = heap.target().unwrap().kind(kind);
            let (neighbours, ()) = Neighbours::around(&target, |_| ());
            let fuse = Cell::new(0);
            let map: HashMap<Key<'_>, Fuse<'_>> = (0..5)
                .map(|nth| (Key(&fuse, nth), Fuse(&fuse, vec![nth as u8; 10_000 * nth as usize])))
                .collect();
            // `adapt` clones and hashes each of 5 keys, and calls 5 rules: 15 calls can panic.
            for nth in 1..=15 {
                fuse.set(nth);
                panics(|| target.adapt(&map));
                assert_eq!(heap.usage_of(kind).unwrap().live, 8 * 512, "{pool}: {kind}: {nth}");
            }
            fuse.set(0);
            let adapted = target.adapt(&map).unwrap();
            for (key, array) in &adapted {
                assert_eq!(array.to_vec().unwrap(), vec![key.1 as u8; 10_000 * key.1 as usize]);
            }
            neighbours.check(pool);
            drop((neighbours, adapted));
        }
        assert_clean(&device, &heap, pool);
    }
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(transparent)]
struct Shy(u8);

impl fmt::Debug for Shy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("-"),
            1 => Err(fmt::Error),
            _ => panic_any(PLANNED),
        }
    }
}

#[test]
fn in_elements_that_are_printed() {
    let device = device(1 << 30, Schedule::Immediate);
    let heap = heap(&device, PoolKind::Split);
    let array = heap.target().unwrap().array(&[Shy(0), Shy(2)]).unwrap();
    panics(|| format!("{array:?}"));
    panics(|| format!("{:?}", Diagonal(array.view())));
    assert!(format!("{:?}", array.slice(..1).unwrap()).ends_with("[-]"));
    let failing = heap.target().unwrap().array(&[Shy(1)]).unwrap();
    assert!(fmt::write(&mut String::new(), format_args!("{failing:?}")).is_err());
    drop((array, failing));
    assert_clean(&device, &heap, "printed");
}

#[test]
fn at_the_end_of_threads() {
    let device = device(1 << 30, Schedule::Immediate);
    let heap = Heap::builder(&device).track(Tracking::Counts).build().unwrap();
    let told = Arc::new(AtomicU64::new(0));
    for bomb in [false, true] {
        let count = told.clone();
        heap.on_thread_end(move |_| {
            count.fetch_add(1, Ordering::Relaxed);
            if bomb { panic_any(Bomb) } else { panic_any(PLANNED) }
        });
        let target = heap.target().unwrap();
        let left = std::thread::spawn(move || target.filled(10, 4_u8).unwrap()).join().unwrap();
        assert_eq!(left.to_vec().unwrap(), [4; 10]);
    }
    assert_eq!(told.load(Ordering::Relaxed), 2);
    heap.on_thread_end(|_| ());
    assert_clean(&device, &heap, "threads");
}
