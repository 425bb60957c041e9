//! What is done, in order, when there is no memory for a request.

use std::fmt;

/// One step of the ladder. The request is tried again after each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Step {
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

/// The ladder.
pub(crate) const LADDER: [Step; 10] = [
    Step::Ready,
    Step::InFlight,
    Step::Cache,
    Step::WholeCache,
    Step::OtherHeaps,
    Step::WholeOtherHeaps,
    Step::Reclaimers,
    Step::DriverPool,
    Step::LateRelease,
    Step::Alone,
];

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Step::Ready => "taking ready frees",
            Step::InFlight => "waiting for frees in flight",
            Step::Cache => "giving cached memory back",
            Step::WholeCache => "giving the whole cache back",
            Step::OtherHeaps => "giving back what other heaps cache",
            Step::WholeOtherHeaps => "giving back all that other heaps cache",
            Step::Reclaimers => "asking reclaimers",
            Step::DriverPool => "trimming the driver's pool",
            Step::LateRelease => "waiting for the host's late release",
            Step::Alone => "all of it with other threads held off",
        })
    }
}
