//! Calls Python's garbage collector when a request is short of memory.

use std::cell::Cell;

use pyo3::prelude::*;

thread_local! {
    /// `true` while requests of this thread may take the interpreter's lock. A request from Python
    /// may, because it released the lock before. A request from a foreign allocator may not. This
    /// thread may hold that allocator's lock, and the thread with the interpreter's lock may wait
    /// for it.
    static MAY_ATTACH: Cell<bool> = const { Cell::new(false) };
}

/// Permission for this thread's requests to take the interpreter's lock. Dropping the value
/// restores the earlier permission. Permissions nest, because the collector runs finalisers that
/// may allocate.
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

/// Runs Python's collector if this thread may take the interpreter's lock. Returns 0, because the
/// heap counts the freed bytes itself.
pub(crate) fn collect() -> u64 {
    if MAY_ATTACH.get() {
        // A collector that fails has still freed part of the garbage, so ignore the error.
        let _ = Python::try_attach(|py| {
            py.import("gc").and_then(|gc| gc.call_method0("collect")).is_ok()
        });
    }
    0
}
