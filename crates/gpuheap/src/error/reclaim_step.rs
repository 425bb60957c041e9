//! Reclaim steps, in the order in which a heap runs them for a request.

use std::fmt;

/// A reclaim step. The request is tried again after each step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReclaimStep {
    /// Makes freed memory available if its stream has reached the free.
    Ready,
    /// Waits, on the host, for the frees in flight.
    InFlight,
    /// Returns only as much cached memory to the driver as the request needs. Chooses the smallest
    /// unused segment that covers the missing bytes, or else the largest segment.
    Cache,
    /// Returns all cached memory to the driver.
    WholeCache,
    /// Makes other heaps of this process return as much cached memory as is needed. If a total
    /// limit is reached, these are the other heaps under that limit, else the other heaps on the
    /// device. They return unused memory first, then memory that needs a wait for its streams.
    OtherHeaps,
    /// Makes the heaps of [`OtherHeaps`](ReclaimStep::OtherHeaps) return all their cached memory.
    WholeOtherHeaps,
    /// Calls the reclaimers registered with this heap, each once.
    Reclaimers,
    /// Waits for the device and trims the driver's own pool.
    DriverPool,
    /// Waits a while on WSL2, whose host returns memory late.
    LateRelease,
    /// Pauses the other threads, waits for pending frees and returns all cached memory to the
    /// driver. The paused threads can neither take that memory nor keep memory in their caches. The
    /// step repeats while other heaps return memory. One request at a time runs it on a device.
    Alone,
}

/// The reclaim steps, in order.
pub(crate) const RECLAIM_STEPS: [ReclaimStep; 10] = [
    ReclaimStep::Ready,
    ReclaimStep::InFlight,
    ReclaimStep::Cache,
    ReclaimStep::WholeCache,
    ReclaimStep::OtherHeaps,
    ReclaimStep::WholeOtherHeaps,
    ReclaimStep::Reclaimers,
    ReclaimStep::DriverPool,
    ReclaimStep::LateRelease,
    ReclaimStep::Alone,
];

impl fmt::Display for ReclaimStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ReclaimStep::Ready => "taking ready frees",
            ReclaimStep::InFlight => "waiting for frees in flight",
            ReclaimStep::Cache => "giving cached memory back",
            ReclaimStep::WholeCache => "giving all cached memory back",
            ReclaimStep::OtherHeaps => "returning memory that other heaps cache",
            ReclaimStep::WholeOtherHeaps => "returning all memory that other heaps cache",
            ReclaimStep::Reclaimers => "calling reclaimers",
            ReclaimStep::DriverPool => "trimming the driver's pool",
            ReclaimStep::LateRelease => "waiting for the host's late release",
            ReclaimStep::Alone => "all steps with other threads paused",
        })
    }
}
