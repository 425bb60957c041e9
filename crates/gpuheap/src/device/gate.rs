//! Keeps host and device from accessing unified memory at the same time.

use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use crate::error::HostBorrowed;

/// A gate that keeps host and device apart if they cannot access managed memory concurrently
/// (WSL2). There, the program crashes if the host accesses any managed memory while anything runs
/// on the device. With concurrent access the gate costs one branch. Each device has its own gate,
/// so a borrow of one device's memory does not block work on another device.
///
/// A borrow by the host first raises the number of borrows and then waits for the device. Work is
/// enqueued only while that number is locked at zero. All work is therefore enqueued before the
/// wait, or refused.
pub(crate) struct HostGate {
    /// Number of borrows by the host; `None` with concurrent access.
    borrows: Option<RwLock<u32>>,
}

impl HostGate {
    pub(super) fn new(concurrent_managed_access: bool) -> HostGate {
        HostGate { borrows: (!concurrent_managed_access).then(RwLock::default) }
    }

    /// Returns a guard that allows work to be enqueued. Hold it only while work is enqueued: a
    /// thread that takes the guard twice may deadlock.
    pub(crate) fn work(&self) -> Result<Option<RwLockReadGuard<'_, u32>>, HostBorrowed> {
        let Some(borrows) = &self.borrows else { return Ok(None) };
        let borrows = borrows.read().unwrap_or_else(PoisonError::into_inner);
        if *borrows == 0 { Ok(Some(borrows)) } else { Err(HostBorrowed) }
    }

    /// Begins a borrow by the host. Until the borrow ends, no work is enqueued on the device.
    /// Returns `true` if the caller has to wait for the device.
    pub(crate) fn begin_borrow(&self) -> bool {
        let Some(borrows) = &self.borrows else { return false };
        *borrows.write().unwrap_or_else(PoisonError::into_inner) += 1;
        true
    }

    pub(crate) fn end_borrow(&self) {
        let Some(borrows) = &self.borrows else { return };
        let mut borrows = borrows.write().unwrap_or_else(PoisonError::into_inner);
        *borrows = borrows.saturating_sub(1);
    }
}
