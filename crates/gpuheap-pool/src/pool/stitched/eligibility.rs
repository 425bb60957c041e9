//! What of the free memory a stream can have.
//!
//! A stream that captures a graph is not fenced, and does not wait; nor can one be fenced that ended
//! unannounced. What was freed there is nobody else's for a time, and must not stand in the way of
//! the rest.

use super::blocks::Last;
use crate::order::Order;
use crate::stream::StreamRef;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Eligibility {
    /// All free memory: what is not out of use can be waited for, most often.
    All,
    /// What there is a fence to wait for. After a poll nothing else can be waited for.
    Fenced,
    /// What can be used with no wait, as the stream that asks cannot wait.
    Open,
}

impl Eligibility {
    pub(super) fn allows(self, last: Last, stream: StreamRef, order: &Order) -> bool {
        let Some(ticket) = last.ticket() else { return true };
        match self {
            Eligibility::All => true,
            Eligibility::Fenced => order.is_usable_on(ticket, stream) || order.is_fenced(ticket),
            Eligibility::Open => order.is_usable_on(ticket, stream),
        }
    }

    /// What to count on where this was too much; none where no wait was needed.
    pub(super) fn less(self) -> Option<Eligibility> {
        match self {
            Eligibility::All => Some(Eligibility::Fenced),
            Eligibility::Fenced => Some(Eligibility::Open),
            Eligibility::Open => None,
        }
    }
}
