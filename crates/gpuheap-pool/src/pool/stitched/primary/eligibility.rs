//! Eligibility: the free memory that a stream can use.
//!
//! A capturing stream is not fenced and does not wait. A stream that ended unannounced cannot be
//! fenced. For a time no other stream can use memory freed on them. That memory must not stand in
//! the way of the rest.

use super::blocks::LastUse;
use crate::order::Order;
use crate::stream::StreamRef;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Eligibility {
    /// All free memory: if it is in use, it can be waited for in most cases.
    All,
    /// Memory with a fence to wait for. After a poll nothing else can be waited for.
    Fenced,
    /// Memory that is usable without a wait, because the requesting stream cannot wait.
    Usable,
}

impl Eligibility {
    pub(crate) fn allows(self, last: LastUse, stream: StreamRef, order: &Order) -> bool {
        let Some(ticket) = last.ticket() else { return true };
        match self {
            Eligibility::All => true,
            Eligibility::Fenced => order.is_usable_on(ticket, stream) || order.is_fenced(ticket),
            Eligibility::Usable => order.is_usable_on(ticket, stream),
        }
    }

    /// Returns the next narrower eligibility, for when this one was too wide; `None` if this one
    /// already needs no wait.
    pub(crate) fn narrower(self) -> Option<Eligibility> {
        match self {
            Eligibility::All => Some(Eligibility::Fenced),
            Eligibility::Fenced => Some(Eligibility::Usable),
            Eligibility::Usable => None,
        }
    }
}
