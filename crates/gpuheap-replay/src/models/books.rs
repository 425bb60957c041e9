//! Counts the bytes that the model of an allocator takes from the driver and hands out.

use super::{DriverEvent, Figures, Refusal, Request};

/// Byte counts and driver calls of the model of an allocator. Sizes are bytes.
#[derive(Debug, Clone, Default)]
pub struct Books {
    pub(super) figures: Figures,
    pub(super) events: Vec<DriverEvent>,
    /// Largest number of bytes that the model may reserve.
    pub(super) allowed: u64,
}

/// Size of the largest device, in bytes. At 4 PiB, no sum of addresses overflows.
const LARGEST_DEVICE: u64 = 1 << 52;

impl Books {
    /// Returns counts of zero. The model may reserve `allowed` bytes of the device, at most 4 PiB.
    pub fn new(allowed: u64) -> Self {
        Self { allowed: allowed.min(LARGEST_DEVICE), ..Self::default() }
    }

    /// Sets the number of bytes that the model may reserve. Segments that are already taken remain.
    pub fn set_allowed(&mut self, bytes: u64) {
        self.allowed = bytes.min(LARGEST_DEVICE);
    }

    /// Takes a segment of `bytes` from the driver. Returns `false` and takes nothing if the device
    /// is full.
    pub fn take(&mut self, bytes: u64, stream: u64, address: u64) -> bool {
        match self.figures.reserved.checked_add(bytes) {
            Some(reserved) if reserved <= self.allowed => self.figures.reserved = reserved,
            _ => return false,
        }
        self.figures.peak_reserved = self.figures.peak_reserved.max(self.figures.reserved);
        self.figures.segments += 1;
        self.count_call(true, bytes, stream, address);
        true
    }

    /// Gives a segment back to the driver.
    pub fn give_back(&mut self, bytes: u64, stream: u64, address: u64) {
        let figures = &mut self.figures;
        figures.reserved = figures.reserved.saturating_sub(bytes);
        figures.segments = figures.segments.saturating_sub(1);
        self.count_call(false, bytes, stream, address);
    }

    /// Counts a driver call that took memory or gave it back.
    pub(super) fn count_call(&mut self, is_taken: bool, bytes: u64, stream: u64, address: u64) {
        self.figures.driver_calls += 1;
        self.events.push(DriverEvent { is_taken, bytes, stream, address });
    }

    /// Counts a block of `bytes` that serves a request of `requested` bytes.
    pub fn handed_out(&mut self, requested: u64, bytes: u64) {
        let figures = &mut self.figures;
        figures.requested = figures.requested.saturating_add(requested);
        figures.allocated = figures.allocated.saturating_add(bytes);
        figures.active = figures.allocated;
        figures.peak_active = figures.peak_active.max(figures.active);
    }

    /// Counts the free of a block that [`handed_out`](Self::handed_out) counted.
    pub fn freed(&mut self, requested: u64, bytes: u64) {
        let figures = &mut self.figures;
        figures.requested = figures.requested.saturating_sub(requested);
        figures.allocated = figures.allocated.saturating_sub(bytes);
        figures.active = figures.allocated;
    }

    /// Counts a failed request. The request needed `needed` bytes from the driver, and the largest
    /// free block has `largest` bytes.
    pub fn refuse(&mut self, request: Request, needed: u64, largest: u64) -> Box<Refusal> {
        self.figures.failures += 1;
        Box::new(Refusal {
            request,
            needed,
            allowed: self.allowed,
            largest_free: largest,
            pending: 0,
            figures: self.figures,
        })
    }
}
