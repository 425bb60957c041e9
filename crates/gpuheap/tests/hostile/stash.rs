//! Rules that keep handles to what they made.

use std::cell::RefCell;

use gpuheap::adapt::Upload;
use gpuheap::emu::Schedule;
use gpuheap::{Adapt, Error, PoolKind, SharedArray};

use crate::support::{assert_no_findings, device, heap};

/// Elements of an array that is uploaded by itself, and of one that shares a block.
const COUNTS: [usize; 2] = [1 << 20, 100];

/// A rule that keeps a handle to the array that it made and returns nothing.
struct Stash<'a> {
    arrays: &'a RefCell<Vec<SharedArray<u8>>>,
    /// Elements of each array.
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

/// The kept array is written on the stream beside, behind the upload, before its turn begins.
#[test]
fn kept_array_written_ahead_of_its_turn_is_read_as_written() {
    for (pool, schedule, count) in cases() {
        let device = device(1 << 30, schedule);
        let heap = heap(&device, pool);
        let stream = device.stream().unwrap();
        let target = heap.on(&stream);
        let arrays = RefCell::new(Vec::new());
        let items = (0..4).map(|_| Stash { arrays: &arrays, count });
        let mut batches = target.batches(items).prefetch(2);
        batches.next().unwrap().unwrap();
        // Uploads two ahead.
        batches.next().unwrap().unwrap();
        let mut ahead = arrays.borrow_mut().remove(2);
        ahead.fill(7).unwrap();
        batches.next().unwrap().unwrap();
        let wrong = ahead.to_vec().unwrap().iter().filter(|byte| **byte != 7).count();
        assert_eq!(wrong, 0, "{pool} {schedule:?} {count}");
        assert_no_findings(&device, pool.name());
    }
}

/// The next owner of the memory of a kept array comes after all that the array was given.
#[test]
fn kept_array_freed_in_its_turn_is_freed_behind_its_last_write() {
    for (pool, schedule, count) in cases() {
        let device = device(1 << 30, schedule);
        let heap = heap(&device, pool);
        let stream = device.stream().unwrap();
        let target = heap.on(&stream);
        let arrays = RefCell::new(Vec::new());
        let items = (0..4).map(|_| Stash { arrays: &arrays, count });
        let mut batches = target.batches(items).prefetch(2);
        batches.next().unwrap().unwrap();
        batches.next().unwrap().unwrap();
        let mut ahead = arrays.borrow_mut().remove(2);
        for _ in 0..4 {
            ahead.fill(9).unwrap();
        }
        batches.next().unwrap().unwrap();
        ahead.free_early().unwrap();
        let next = target.filled(count, 1_u8).unwrap();
        device.synchronize().unwrap();
        let lost = next.to_vec().unwrap().iter().filter(|byte| **byte != 1).count();
        assert_eq!(lost, 0, "{pool} {schedule:?} {count}");
        assert_no_findings(&device, pool.name());
    }
}
