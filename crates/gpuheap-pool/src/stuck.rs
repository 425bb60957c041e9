//! Frees that no wait can end now.

use crate::stream::Ticket;

/// The frees of streams that capture a graph and have no fence for them: what was freed is for no other
/// stream before the capture ends.
#[derive(Debug, Default)]
pub struct Stuck {
    /// Places of streams in the heap's table, each with the last free that can be waited for.
    streams: Vec<(usize, u64)>,
}

impl Stuck {
    /// Adds the frees of one stream after the free `waitable`.
    pub fn add(&mut self, slot: usize, waitable: u64) {
        self.streams.push((slot, waitable));
    }

    /// Returns `true` if a wait can end every free.
    pub fn is_empty(&self) -> bool {
        self.streams.is_empty()
    }

    /// Returns `true` if the free of `ticket` is one of these.
    pub fn holds(&self, ticket: Ticket) -> bool {
        let is_after =
            |(slot, waitable): &(usize, u64)| *slot == ticket.slot() && ticket.number > *waitable;
        self.streams.iter().any(is_after)
    }
}
