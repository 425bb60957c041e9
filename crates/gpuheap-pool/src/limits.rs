//! Limits on the memory that a heap takes from the driver.

/// Limits of one heap, in bytes taken from the driver; `None` for no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Soft limit: cached memory above it is given back at the heap's next call that finds it out
    /// of use.
    pub soft: Option<u64>,
    /// Hard limit, never exceeded: an allocation that would exceed it is refused with an error. The
    /// pool takes at least 2 MiB at a time, or 32 MiB with `driver`; if less than that is left, it
    /// takes nothing more.
    pub hard: Option<u64>,
}
