//! Eligibility decides which free memory a stream can use.
//!
//! A capturing stream is not fenced and does not wait. A stream that ended unannounced cannot be
//! fenced. Until the capture ends, or the heap waits for the device, no other stream can use memory
//! freed on such streams. A search must skip that memory and find other free memory.

use super::blocks::LastUse;
use crate::order::Order;
use crate::stream::StreamRef;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Eligibility {
    /// All free memory. If enqueued work still uses the memory, the stream can usually wait for it.
    All,
    /// Memory that needs no wait, and memory with a fence to wait for. A poll fences the frees of
    /// the polled streams, so most memory without a fence was freed on streams that take no fence.
    Fenced,
    /// Only memory that needs no wait: the stream cannot wait, for example during a capture.
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

    /// Returns the next stricter eligibility, for another search if the stream cannot wait for the
    /// memory that was found. Returns `None` for [`Eligibility::Usable`].
    pub(crate) fn narrower(self) -> Option<Eligibility> {
        match self {
            Eligibility::All => Some(Eligibility::Fenced),
            Eligibility::Fenced => Some(Eligibility::Usable),
            Eligibility::Usable => None,
        }
    }
}
