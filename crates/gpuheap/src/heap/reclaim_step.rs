//! What is done, in order, when there is no memory for a request.

use std::fmt;

/// One reclaim step. The request is tried again after each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReclaimStep {
    /// Take frees whose streams got there.
    Ready,
    /// Wait, on the host, for the frees that are in flight.
    InFlight,
    /// Give cached memory back, in few pieces and little more than is needed: the smallest unused
    /// segment that covers what is left, else the largest.
    Cache,
    /// Give all cached memory back.
    WholeCache,
    /// Have the other heaps of this process on the device give cached memory back, only as much as
    /// is needed: first what is out of use, then what their streams have to be waited for.
    OtherHeaps,
    /// Have the other heaps of this process give all their cached memory back.
    WholeOtherHeaps,
    /// Ask the reclaimers registered with this heap, each once.
    Reclaimers,
    /// Wait for the device and trim the driver's own pool.
    DriverPool,
    /// On WSL2, wait a while: the host gives memory back late.
    LateRelease,
    /// Everything once more with the other threads held off: what they freed in the meantime, or
    /// took of what this request had set free, does not escape it. Repeated while other heaps give
    /// something back, one request of the device at a time.
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
            ReclaimStep::WholeCache => "giving the whole cache back",
            ReclaimStep::OtherHeaps => "giving back what other heaps cache",
            ReclaimStep::WholeOtherHeaps => "giving back all that other heaps cache",
            ReclaimStep::Reclaimers => "asking reclaimers",
            ReclaimStep::DriverPool => "trimming the driver's pool",
            ReclaimStep::LateRelease => "waiting for the host's late release",
            ReclaimStep::Alone => "all of it with other threads held off",
        })
    }
}
