//! Makes requests take turns in their last reclaim step, the reclaim of memory from other heaps.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Longest time that a request waits for its turn to reclaim from other heaps. The request whose
/// turn it is may wait until streams of other heaps have reached their frees. If such a stream
/// waits for a thread that waits for its turn, neither wait ends by itself. So after this time,
/// requests continue without a turn.
const LONGEST_TURN: Duration = Duration::from_secs(2);

/// The turn of a request to reclaim memory from other heaps of a device, in the last reclaim step.
/// One request of the device has it at a time.
///
/// Without turns, two requests that fail at the same time could each hold a part of the memory that
/// the other needs.
#[derive(Debug, Default)]
pub(crate) struct ReclaimTurn {
    is_taken: Mutex<bool>,
    ended: Condvar,
}

/// Guard of the request whose turn it is. The turn ends when the guard is dropped.
#[derive(Debug)]
pub(crate) struct TurnGuard<'a>(&'a ReclaimTurn);

impl ReclaimTurn {
    /// Waits until no other request has the turn, and takes the turn. Returns `None` after
    /// [`LONGEST_TURN`].
    pub(crate) fn take(&self) -> Option<TurnGuard<'_>> {
        self.take_within(LONGEST_TURN)
    }

    fn take_within(&self, longest: Duration) -> Option<TurnGuard<'_>> {
        let end = Instant::now() + longest;
        let mut is_taken = self.is_taken.lock().unwrap_or_else(PoisonError::into_inner);
        while *is_taken {
            let left = end.checked_duration_since(Instant::now())?;
            let waited = self.ended.wait_timeout(is_taken, left);
            is_taken = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        *is_taken = true;
        Some(TurnGuard(self))
    }
}

impl Drop for TurnGuard<'_> {
    fn drop(&mut self) {
        *self.0.is_taken.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.0.ended.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turn_is_exclusive_and_wait_bounded() {
        let turn = ReclaimTurn::default();
        let taken = turn.take();
        assert!(taken.is_some());
        assert!(turn.take_within(Duration::ZERO).is_none());
        drop(taken);
        std::thread::scope(|scope| {
            let taken = turn.take_within(Duration::ZERO);
            assert!(taken.is_some());
            let next = scope.spawn(|| turn.take().is_some());
            drop(taken);
            assert!(next.join().unwrap_or(false));
        });
    }
}
