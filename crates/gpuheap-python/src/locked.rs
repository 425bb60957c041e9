//! Locks of a heap's tables.

use std::sync::{Mutex, MutexGuard, PoisonError};

use gpuheap::Error;

/// Locks a table of a heap. In a forked child the thread that had the lock may not exist, so a
/// table that is locked is refused there, and not waited for.
pub(crate) fn locked<'a, T>(
    heap: &gpuheap::Heap,
    table: &'a Mutex<T>,
) -> Result<MutexGuard<'a, T>, Error> {
    match heap.check_alive() {
        Ok(()) => Ok(table.lock().unwrap_or_else(PoisonError::into_inner)),
        // After a reset of the device, the table is still of use.
        Err(gone) => table.try_lock().map_err(|_| gone),
    }
}
