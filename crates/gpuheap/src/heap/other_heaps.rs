//! Figures of the other heaps of the process.

/// Bytes of one kind of memory that other heaps of this process hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OtherHeaps {
    /// Bytes that the driver counts for these heaps.
    pub(crate) reserved: u64,
    /// Bytes of `reserved` that are free, pending ones included.
    pub(crate) cached: u64,
    /// Bytes of `cached` in whole segments, which can return to the driver.
    pub(crate) spare: u64,
    /// Bytes of `spare` that the driver may keep, because they share a piece of it with memory in
    /// use.
    pub(crate) may_stay: u64,
    /// Bytes in whole segments that can return to the driver once the captures of graphs end in
    /// which they were freed.
    pub(crate) stuck: u64,
}

impl OtherHeaps {
    /// Returns the figures after the spare segments are given back.
    pub(crate) fn without_spare(self) -> OtherHeaps {
        let left = |bytes: u64| bytes.saturating_sub(self.spare);
        let (reserved, cached) = (left(self.reserved), left(self.cached));
        OtherHeaps { reserved, cached, spare: 0, may_stay: 0, ..self }
    }

    /// Returns the figures as they will be once all captures of graphs have ended.
    pub(crate) fn after_captures(self) -> OtherHeaps {
        OtherHeaps { spare: self.spare.saturating_add(self.stuck), stuck: 0, ..self }
    }
}
