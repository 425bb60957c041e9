//! Batches that a thread uploads.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use gpuheap::emu::Schedule;
use gpuheap::{Adapt, DeviceArray, PoolKind};

use crate::support::{assert_all_returned, device, emulated, heap, make_heap};
use crate::upload_ahead::{BATCH, limited};

#[test]
fn leaving_early_ends_the_thread() {
    let device = device(1 << 30, Schedule::Seeded(2));
    let heap = limited(&device, 12);
    let target = heap.target().unwrap();
    let pulled = AtomicUsize::new(0);
    let endless = || {
        std::iter::from_fn(|| {
            pulled.fetch_add(1, Ordering::Relaxed);
            Some(vec![1_u8; BATCH])
        })
    };
    thread::scope(|scope| {
        for (nth, batch) in target.batches(endless()).prefetch_on(scope, 2).unwrap().enumerate() {
            batch.unwrap();
            if nth == 3 {
                break;
            }
        }
        // Starts a second thread that uploads batches, and requests no batch from it.
        drop(target.batches(endless()).prefetch_on(scope, 2).unwrap());
    });
    // The end of the scope joined both threads. The first thread pulled at most 4 batches for the
    // loop, 2 ahead and 1 more. The second thread pulled at most 3.
    assert!(pulled.load(Ordering::Relaxed) <= 4 + 2 + 1 + 3);
    assert_eq!(heap.usage().unwrap().live, 0);
    assert_all_returned(&device, &heap, "early");
}

#[test]
fn iterator_panic_reaches_next() {
    let device = emulated(1 << 30, Schedule::Seeded(3));
    let heap = heap(&device, PoolKind::Split);
    let target = heap.target().unwrap();
    thread::scope(|scope| {
        let items =
            (0..5_u32).map(|nth| if nth == 3 { panic!("no item {nth}") } else { vec![nth] });
        let mut batches = target.batches(items).prefetch_on(scope, 2).unwrap();
        for nth in 0..3 {
            assert_eq!(batches.next().unwrap().unwrap().to_vec().unwrap(), [nth]);
        }
        let panic = catch_unwind(AssertUnwindSafe(|| batches.next().is_some())).unwrap_err();
        assert_eq!(panic.downcast_ref::<String>().unwrap(), "no item 3");
        assert!(batches.next().is_none());
    });
    assert_all_returned(&device, &heap, "panic");
}

/// An item whose `adapt` panics. It is called on the thread that uploads.
struct Panics;

impl<To> Adapt<To> for Panics {
    type Output = ();

    fn adapt(&self, _: &To) -> Result<(), gpuheap::Error> {
        panic!("no rule")
    }
}

#[test]
fn rule_panic_reaches_next() {
    let device = emulated(1 << 30, Schedule::Seeded(3));
    let heap = heap(&device, PoolKind::Split);
    thread::scope(|scope| {
        let items = vec![(vec![1_u8; 100_000], Panics)];
        let mut batches = heap.target().unwrap().batches(items).prefetch_on(scope, 2).unwrap();
        assert!(catch_unwind(AssertUnwindSafe(|| batches.next().is_some())).is_err());
        assert!(batches.next().is_none());
    });
    assert_all_returned(&device, &heap, "rule");
}

#[test]
fn errors_come_at_their_turn() {
    let device = emulated(1 << 30, Schedule::Seeded(9));
    let heap = limited(&device, 2);
    let sizes = [1, 3, 1].map(|batches| vec![7_u8; batches * BATCH]);
    let results: Vec<bool> = thread::scope(|scope| {
        let batches = heap.target().unwrap().batches(&sizes).prefetch_on(scope, 1).unwrap();
        assert_eq!(batches.len(), 3);
        batches.map(|batch| batch.is_ok()).collect()
    });
    assert_eq!(results, [true, false, true]);
    assert_all_returned(&device, &heap, "errors");
}

#[test]
fn kept_and_made_arrays_stay() {
    let (device, heap) = make_heap(1 << 30, Schedule::Seeded(4), PoolKind::Split);
    let target = heap.target().unwrap();
    let (kept, copies): (Vec<DeviceArray<f32>>, Vec<DeviceArray<f32>>) = thread::scope(|scope| {
        let items = (0..5_i64).map(|nth| vec![nth; 10_000]);
        let mut batches = target.batches(items).cu().prefetch_on(scope, 2).unwrap();
        let mut found = Vec::new();
        while let Some(batch) = batches.next() {
            let batch = batch.unwrap();
            let copy = batch.copy().unwrap();
            found.push((batches.keep(batch), copy));
        }
        found.into_iter().unzip()
    });
    for (nth, (kept, copy)) in kept.iter().zip(&copies).enumerate() {
        assert_eq!(
            (kept.to_vec().unwrap()[9], copy.to_vec().unwrap()[9]),
            (nth as f32, nth as f32)
        );
    }
    drop((kept, copies));
    assert_all_returned(&device, &heap, "kept");
}

/// A program takes some batches before it starts a thread that uploads.
#[test]
fn feeder_continues_after_batches() {
    let device = emulated(1 << 30, Schedule::Seeded(4));
    let heap = heap(&device, PoolKind::Split);
    let target = heap.target().unwrap();
    let items: Vec<Vec<u32>> = (0..6).map(|nth| vec![nth; 10_000]).collect();
    let found: Vec<u32> = thread::scope(|scope| {
        let mut batches = target.batches(&items).prefetch(2);
        let first = batches.next().unwrap().unwrap();
        let _second = batches.next().unwrap().unwrap();
        assert!(first.is_freed());
        let batches = batches.prefetch_on(scope, 1).unwrap();
        assert_eq!(batches.len(), 4);
        batches.map(|batch| batch.unwrap().to_vec().unwrap()[0]).collect()
    });
    assert_eq!(found, [2, 3, 4, 5]);
    assert_all_returned(&device, &heap, "on");
}
