//! Synchronizes threads by two kinds of locks: a [`Word`] guards data elsewhere, and a [`Lock`]
//! contains its value. Gives each thread a number. Tests with loom explore how threads interleave.

mod lock;
mod shim;
mod word;

use std::cell::Cell;
use std::sync::atomic;

pub(crate) use lock::{Lock, Locked};
pub(crate) use shim::{AtomicBool, AtomicPtr, AtomicU64, Ordering, OwnedU64};
pub(crate) use word::Word;

thread_local! {
    /// Identifier of this thread; zero before the first call.
    static NUMBER: Cell<u64> = const { Cell::new(0) };
}

/// Returns the identifier of this thread. No other thread of the process ever has it.
#[inline]
pub(crate) fn this_thread() -> u64 {
    let number = NUMBER.get();
    if number != 0 { number } else { new_number() }
}

#[cold]
fn new_number() -> u64 {
    static NUMBERS: atomic::AtomicU64 = atomic::AtomicU64::new(0);
    let number = NUMBERS.fetch_add(1, atomic::Ordering::Relaxed) + 1;
    NUMBER.set(number);
    number
}
