//! Eligibility decides which free memory a stream can use.
//!
//! A capturing stream is not fenced and does not wait. A stream that ended unannounced cannot be
//! fenced. For some time, no other stream can use memory freed on such streams. That memory must
//! not keep other free memory from being used.

use super::blocks::LastUse;
use crate::order::Order;
use crate::stream::StreamRef;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Eligibility {
    /// All free memory, in use or not: in most cases, the stream can wait for the last use.
    All,
    /// Memory that needs no wait, and memory with a fence to wait for. A poll has fenced all frees
    /// that can be fenced, so no stream can wait for the remaining memory.
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

    /// Returns the next narrower eligibility, for a retry if this eligibility allowed memory that
    /// cannot be waited for. Returns `None` for [`Eligibility::Usable`].
    pub(crate) fn narrower(self) -> Option<Eligibility> {
        match self {
            Eligibility::All => Some(Eligibility::Fenced),
            Eligibility::Fenced => Some(Eligibility::Usable),
            Eligibility::Usable => None,
        }
    }
}
