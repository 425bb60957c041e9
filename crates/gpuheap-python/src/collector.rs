//! Runs of Python's collector for requests that are short of memory.

use std::cell::Cell;

use pyo3::prelude::*;

thread_local! {
    /// `true` while a request of this thread may take the interpreter's lock: the request came from
    /// Python, and released the lock itself. Below a foreign allocator a thread may hold that
    /// allocator's lock, and a thread with the interpreter's lock may wait for it.
    static MAY_ATTACH: Cell<bool> = const { Cell::new(false) };
}

/// Permission of this thread's requests to take the interpreter's lock, until it is dropped. It
/// keeps the earlier permission: a finaliser that the collector runs may allocate.
pub(crate) struct MayAttach(bool);

impl MayAttach {
    pub(crate) fn begin() -> MayAttach {
        MayAttach(MAY_ATTACH.replace(true))
    }
}

impl Drop for MayAttach {
    fn drop(&mut self) {
        MAY_ATTACH.set(self.0);
    }
}

/// Runs Python's collector, if this thread may take the interpreter's lock. Returns 0: the heap
/// itself counts the freed bytes.
pub(crate) fn collect() -> u64 {
    if MAY_ATTACH.get() {
        // A collector that fails has freed part of the garbage.
        let _ = Python::try_attach(|py| {
            py.import("gc").and_then(|gc| gc.call_method0("collect")).is_ok()
        });
    }
    0
}
