//! Host gate: keeps host and device from accessing unified memory at the same time.

use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use crate::error::HostBorrowed;

/// A gate that keeps device and host apart on a device without concurrent access to managed memory
/// (WSL2). There, a host that accesses any managed memory while anything runs on the device
/// crashes. With concurrent access the gate costs one branch. Each device has its own gate, so a
/// borrow of one device's memory does not keep work from another.
///
/// A borrow by the host first counts itself and then waits for the device. Work is enqueued with
/// the count held at zero, so it comes wholly before that wait, or is refused.
pub(crate) struct HostGate {
    /// Number of borrows by the host; `None` with concurrent access.
    borrows: Option<RwLock<u32>>,
}

impl HostGate {
    pub(super) fn new(concurrent_managed_access: bool) -> HostGate {
        HostGate { borrows: (!concurrent_managed_access).then(RwLock::default) }
    }

    /// Returns a guard to hold while work is enqueued, and no longer: a thread that takes it twice
    /// may deadlock.
    pub(crate) fn work(&self) -> Result<Option<RwLockReadGuard<'_, u32>>, HostBorrowed> {
        let Some(borrows) = &self.borrows else { return Ok(None) };
        let borrows = borrows.read().unwrap_or_else(PoisonError::into_inner);
        if *borrows == 0 { Ok(Some(borrows)) } else { Err(HostBorrowed) }
    }

    /// Begins a borrow: no work is enqueued until it ends. Returns `true` if the caller has to wait
    /// for the device.
    pub(crate) fn begin_borrow(&self) -> bool {
        let Some(borrows) = &self.borrows else { return false };
        *borrows.write().unwrap_or_else(PoisonError::into_inner) += 1;
        true
    }

    /// Ends a borrow.
    pub(crate) fn end_borrow(&self) {
        let Some(borrows) = &self.borrows else { return };
        let mut borrows = borrows.write().unwrap_or_else(PoisonError::into_inner);
        *borrows = borrows.saturating_sub(1);
    }
}
