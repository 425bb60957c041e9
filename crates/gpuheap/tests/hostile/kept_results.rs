//! Tests of adapt rules that keep handles to their results.

use std::cell::RefCell;

use gpuheap::adapt::Upload;
use gpuheap::emu::Schedule;
use gpuheap::{Adapt, Error, PoolKind, SharedArray, Target};

use crate::support::{assert_no_findings, device, heap};

/// Number of elements of an array that is uploaded alone, and of an array that shares a block.
const COUNTS: [usize; 2] = [1 << 20, 100];

/// An adapt rule that makes an array, keeps a handle to it in `arrays`, and returns nothing.
struct Stash<'a> {
    arrays: &'a RefCell<Vec<SharedArray<u8>>>,
    /// Number of elements of each array.
    count: usize,
}

impl Adapt<Upload> for Stash<'_> {
    type Output = ();

    fn adapt(&self, to: &Upload) -> Result<(), Error> {
        let array = vec![0_u8; self.count].adapt(to)?;
        self.arrays.borrow_mut().push(array.into_shared());
        Ok(())
    }
}

fn cases() -> impl Iterator<Item = (PoolKind, Schedule, usize)> {
    let schedules = [Schedule::OnDemand, Schedule::Seeded(1), Schedule::Immediate];
    let each = move |pool| schedules.into_iter().map(move |schedule| (pool, schedule));
    let pairs = PoolKind::ALL.into_iter().flat_map(each);
    pairs.flat_map(|(pool, schedule)| COUNTS.map(|count| (pool, schedule, count)))
}

/// Runs each case with four batches, two of them uploaded ahead. While the second batch is current,
/// calls `work`. Its arguments are the target, a closure that makes the third batch current, the
/// third batch's array, and the case's name.
fn ahead_of_its_turn(work: impl Fn(&Target, &mut dyn FnMut(), SharedArray<u8>, &str)) {
    for (pool, schedule, count) in cases() {
        let device = device(1 << 30, schedule);
        let heap = heap(&device, pool);
        let stream = device.stream().unwrap();
        let target = heap.on(&stream);
        let arrays = RefCell::new(Vec::new());
        let items = (0..4).map(|_| Stash { arrays: &arrays, count });
        let mut batches = target.batches(items).prefetch(2);
        let mut next = || batches.next().unwrap().unwrap();
        next();
        next();
        let ahead = arrays.borrow_mut().remove(2);
        work(&target, &mut next, ahead, &format!("{pool} {schedule:?} {count}"));
        assert_no_findings(&device, pool.name());
    }
}

fn assert_all(array: &[u8], value: u8, what: &str) {
    let wrong = array.iter().filter(|byte| **byte != value).count();
    assert_eq!(wrong, 0, "{what}");
}

/// Writes a kept array of a batch uploaded ahead, before the iteration reaches the batch.
#[test]
fn kept_array_written_early_reads_back() {
    ahead_of_its_turn(|_, next, mut ahead, what| {
        ahead.fill(7).unwrap();
        next();
        assert_all(&ahead.to_vec().unwrap(), 7, what);
    });
}

/// The next user of a kept array's memory is ordered after all work enqueued on the array.
#[test]
fn kept_array_free_follows_last_write() {
    ahead_of_its_turn(|target, next, mut ahead, what| {
        for _ in 0..4 {
            ahead.fill(9).unwrap();
        }
        next();
        ahead.free_early().unwrap();
        let new = target.filled(ahead.len(), 1_u8).unwrap();
        target.stream().device().synchronize().unwrap();
        assert_all(&new.to_vec().unwrap(), 1, what);
    });
}
