//! How much a heap may take from the driver.

/// The limits of one heap, in bytes taken from the driver; `None` for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Above this, cached memory is given back at the next call of the heap that finds it out of
    /// use.
    pub soft: Option<u64>,
    /// This is never exceeded: an allocation that would is refused with an error. Below what the
    /// pool takes at a time, 2 MiB or with `driver` 32 MiB, nothing more is taken.
    pub hard: Option<u64>,
}
