//! Mark of a thread that is within this library or within a call of the driver for it.

use std::cell::Cell;

thread_local! {
    // Without a destructor, so it can be read while the thread ends.
    static IS_WITHIN: Cell<bool> = const { Cell::new(false) };
}

/// Mark of the calling thread, until it is dropped.
pub(crate) struct Guard(());

impl Guard {
    /// Marks the thread. Returns `None` if it is marked: the call comes from the driver, from this
    /// library, or from a signal handler that interrupted one of them. Such calls are not recorded.
    pub(crate) fn enter() -> Option<Guard> {
        if IS_WITHIN.replace(true) { None } else { Some(Guard(())) }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        IS_WITHIN.set(false);
    }
}
