//! Numbers of threads.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

thread_local! {
    /// Number of this thread; zero before it is asked for.
    static NUMBER: Cell<u64> = const { Cell::new(0) };
}

/// The number of this thread, which no other one ever has.
#[inline]
pub(crate) fn this_thread() -> u64 {
    let number = NUMBER.get();
    if number != 0 { number } else { new_number() }
}

#[cold]
fn new_number() -> u64 {
    static NUMBERS: AtomicU64 = AtomicU64::new(0);
    let number = NUMBERS.fetch_add(1, Ordering::Relaxed) + 1;
    NUMBER.set(number);
    number
}
