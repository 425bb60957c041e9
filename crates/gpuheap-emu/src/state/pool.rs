//! Stream-ordered pools: what they hold, and whose freed memory may be given to whom.

use crate::state::arena::Arena;
use crate::state::stream::{OpRef, Stream};

/// A pool. Its arena decides how much memory it needs; addresses are given out apart from that and
/// are not used again soon, so that a use after free is found.
pub(crate) struct Pool {
    pub(crate) device: usize,
    /// Bytes at most; 0 for no bound of its own.
    pub(crate) max_bytes: u64,
    pub(crate) is_default: bool,
    pub(crate) destroyed: bool,
    pub(crate) threshold: u64,
    pub(crate) follow_events: bool,
    /// True if freed memory is anybody's as soon as its free is done; otherwise it stays its
    /// stream's until the host waits.
    pub(crate) opportunistic: bool,
    pub(crate) internal_dependencies: bool,
    pub(crate) reserved_high: u64,
    /// Bytes handed out, as they were asked for. `cuMemFree` does not take off: measured.
    pub(crate) used: u64,
    pub(crate) used_high: u64,
    /// Allocations that are live or freed and not done.
    pub(crate) live: u64,
    /// Access of other devices, by ordinal.
    pub(crate) access: Vec<(i32, i32)>,
    pub(crate) arena: Arena,
}

impl Pool {
    pub(crate) fn new(device: usize, max_bytes: u64, is_default: bool) -> Pool {
        Pool {
            device,
            max_bytes,
            is_default,
            destroyed: false,
            threshold: 0,
            follow_events: true,
            opportunistic: true,
            internal_dependencies: true,
            reserved_high: 0,
            used: 0,
            used_high: 0,
            live: 0,
            access: Vec::new(),
            arena: Arena::default(),
        }
    }

    /// A place for `bytes` in what the pool has, if there is one that `stream` may use, and what
    /// it has to wait for then.
    pub(crate) fn take(
        &mut self,
        bytes: u64,
        stream: u32,
        state: &Stream,
    ) -> Option<(u64, Option<OpRef>)> {
        if let Some(place) = self.arena.take_own(bytes, stream) {
            return Some((place, None));
        }
        if let Some(place) = self.arena.take_idle(bytes) {
            return Some((place, None));
        }
        if self.follow_events
            && let Some(found) = self.arena.take_foreign(bytes, |op| state.has_waited_for(op))
        {
            return Some((found.0, Some(found.1)));
        }
        None
    }

    pub(crate) fn note_handed_out(&mut self, bytes: u64) {
        self.used += bytes;
        self.used_high = self.used_high.max(self.used);
        self.reserved_high = self.reserved_high.max(self.arena.backed());
        self.live += 1;
    }
}
