//! Who may be at work where host and device must not touch unified memory at the same time.

use std::sync::{PoisonError, RwLock, RwLockReadGuard};

/// Keeps device and host apart on a device without concurrent access to managed memory (WSL2):
/// there a host that touches any managed memory while anything runs on the device crashes. With
/// concurrent access it costs one branch. Of several such devices each has a gate of its own, so
/// work on one is not kept from running while the host has memory of another.
///
/// A borrow of the host's counts itself first and waits for the device then. Work is enqueued with
/// the count held at zero, so it comes wholly before that wait, or not at all.
pub(crate) struct HostGate {
    /// How many borrows the host has; `None` with concurrent access.
    borrows: Option<RwLock<u32>>,
}

/// The host has unified memory borrowed, so the device may not be given work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostBorrowed;

impl HostBorrowed {
    /// In words.
    pub(crate) const TEXT: &'static str = "the device cannot be given work now, because the host \
        has a unified array of it borrowed (as_slice or as_mut_slice) and the device lacks \
        concurrent access to managed memory, as under WSL2: the host would crash if both ran; drop \
        the borrow first, or use pinned memory";
}

impl HostGate {
    pub(super) fn new(concurrent_managed_access: bool) -> HostGate {
        HostGate { borrows: (!concurrent_managed_access).then(RwLock::default) }
    }

    /// Held while work is enqueued, and for no longer: a thread that takes it twice may wait for
    /// itself.
    pub(crate) fn work(&self) -> Result<Option<RwLockReadGuard<'_, u32>>, HostBorrowed> {
        let Some(borrows) = &self.borrows else { return Ok(None) };
        let borrows = borrows.read().unwrap_or_else(PoisonError::into_inner);
        if *borrows == 0 { Ok(Some(borrows)) } else { Err(HostBorrowed) }
    }

    /// A borrow begins: no work is enqueued from here on. Whether the device has to be waited for.
    pub(crate) fn begin_borrow(&self) -> bool {
        let Some(borrows) = &self.borrows else { return false };
        *borrows.write().unwrap_or_else(PoisonError::into_inner) += 1;
        true
    }

    /// A borrow ends.
    pub(crate) fn end_borrow(&self) {
        let Some(borrows) = &self.borrows else { return };
        let mut borrows = borrows.write().unwrap_or_else(PoisonError::into_inner);
        *borrows = borrows.saturating_sub(1);
    }
}
