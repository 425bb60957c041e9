//! Locks of a heap's tables.

use std::sync::{Mutex, MutexGuard, PoisonError};

use gpuheap::Error;

/// Locks a table of a heap. In a forked child, the thread that held the lock may not exist. If the
/// table is locked there, returns an error instead of waiting.
pub(crate) fn locked<'a, T>(
    heap: &gpuheap::Heap,
    table: &'a Mutex<T>,
) -> Result<MutexGuard<'a, T>, Error> {
    match heap.check_alive() {
        Ok(()) => Ok(table.lock().unwrap_or_else(PoisonError::into_inner)),
        // The process is a forked child, or the device was reset. The table stays usable if no
        // thread holds its lock.
        Err(gone) => table.try_lock().map_err(|_| gone),
    }
}
