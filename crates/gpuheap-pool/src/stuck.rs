//! Frees that no wait can complete now.

use crate::stream::Ticket;

/// Unfenced frees on streams that are capturing a graph. No other stream can use their memory
/// before the capture ends.
#[derive(Debug, Default)]
pub struct Stuck {
    /// Slot of each stream, with the last of its frees that can be waited for.
    streams: Vec<(usize, u64)>,
}

impl Stuck {
    /// Adds the frees of one stream that come after free number `waitable`.
    pub fn add(&mut self, slot: usize, waitable: u64) {
        self.streams.push((slot, waitable));
    }

    /// Returns `true` if a wait can complete every free.
    pub fn is_empty(&self) -> bool {
        self.streams.is_empty()
    }

    /// Returns `true` if no wait can complete the free of `ticket` now.
    pub fn holds(&self, ticket: Ticket) -> bool {
        let is_after =
            |(slot, waitable): &(usize, u64)| *slot == ticket.slot() && ticket.number > *waitable;
        self.streams.iter().any(is_after)
    }
}
