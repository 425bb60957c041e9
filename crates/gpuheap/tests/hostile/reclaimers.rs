//! Reclaimers that end themselves, use other heaps, or measure.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use gpuheap::emu::Schedule;
use gpuheap::{PoolKind, Reclaimer};

use crate::support::{Bomb, device, heap};

const MIB: u64 = 1 << 20;

/// A reclaimer that lets go of itself: what it captured is dropped in the request, panic and all.
#[test]
fn reclaimer_that_lets_go_of_itself() {
    let device = device(64 << 20, Schedule::Immediate);
    let stream = device.stream().unwrap();
    let heap = heap(&device, PoolKind::Split);
    let _held = heap.allocate(40 * MIB, &stream).unwrap();
    let own: Arc<Mutex<Option<Reclaimer>>> = Arc::default();
    let (mine, bomb) = (own.clone(), Bomb);
    let registered = heap.register_reclaimer(move |_| {
        let _ = &bomb;
        drop(mine.lock().unwrap().take());
        0
    });
    *own.lock().unwrap() = Some(registered);
    let made = catch_unwind(AssertUnwindSafe(|| heap.allocate(40 * MIB, &stream).is_err()));
    assert!(made.is_ok(), "allocate panics");
}
