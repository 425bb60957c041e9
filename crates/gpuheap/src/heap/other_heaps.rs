//! Figures of the other heaps of the process.

/// Bytes of one kind of memory that other heaps of this process hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OtherHeaps {
    /// Bytes that the driver counts for them.
    pub(crate) reserved: u64,
    /// Of that, bytes that are free, pending ones included.
    pub(crate) cached: u64,
    /// Of these, bytes in whole segments, which the driver could have back.
    pub(crate) spare: u64,
    /// Of these, bytes that the driver may keep, because they share a piece of it with memory in use.
    pub(crate) may_stay: u64,
    /// Bytes in whole segments that the driver could have back once the captures of graphs end in which
    /// they were freed.
    pub(crate) stuck: u64,
}

impl OtherHeaps {
    /// The figures once the spare segments are given back.
    pub(crate) fn without_spare(self) -> OtherHeaps {
        let left = |bytes: u64| bytes.saturating_sub(self.spare);
        let (reserved, cached) = (left(self.reserved), left(self.cached));
        OtherHeaps { reserved, cached, spare: 0, may_stay: 0, ..self }
    }

    /// The figures once no stream captures a graph.
    pub(crate) fn after_captures(self) -> OtherHeaps {
        OtherHeaps { spare: self.spare.saturating_add(self.stuck), stuck: 0, ..self }
    }
}
