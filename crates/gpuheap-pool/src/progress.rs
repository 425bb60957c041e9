//! Progress of streams that is known from the program's own waits.
//!
//! A context counts *moments*: each wait of the host and each recorded event advances the count.
//! Once a wait, or a wait for an event, completes, all frees made in earlier moments are completed
//! too. A wait costs two additions, and a free costs one load. Neither takes a lock. Heaps check
//! for completed frees only after progress was noted.

use std::sync::atomic::{AtomicU64, Ordering};

/// Moments of one context.
#[derive(Debug, Default)]
pub struct Moments {
    /// Number of the newest moment.
    last: AtomicU64,
    /// Number of times that work became known to be completed.
    changes: AtomicU64,
    /// Moment for which all work enqueued earlier in the context is completed.
    completed: Completed,
}

/// Moment for which all work enqueued earlier on a stream is known to be completed.
#[derive(Debug, Default)]
pub struct Completed(AtomicU64);

impl Moments {
    /// Returns the newest moment.
    #[inline]
    pub fn now(&self) -> u64 {
        self.last.load(Ordering::SeqCst)
    }

    /// Advances the count of moments, and returns the new moment. Work enqueued on a stream before
    /// this call belongs to an earlier moment.
    pub fn begin(&self) -> u64 {
        self.last.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Notes that work enqueued on `stream` before `moment` is completed.
    pub fn complete(&self, stream: &Completed, moment: u64) {
        if stream.0.fetch_max(moment, Ordering::SeqCst) < moment {
            self.changes.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Notes that work enqueued on any stream before `moment` is completed.
    pub fn complete_all(&self, moment: u64) {
        self.complete(&self.completed, moment);
    }

    /// Returns a moment. The stream's work that was enqueued before that moment is completed.
    #[inline]
    pub fn completed(&self, stream: &Completed) -> u64 {
        stream.0.load(Ordering::SeqCst).max(self.completed.0.load(Ordering::SeqCst))
    }

    /// Returns a moment. Waits for the stream itself, not for the whole context, have shown that
    /// its work enqueued before that moment is completed.
    #[inline]
    pub fn completed_by_itself(&self, stream: &Completed) -> u64 {
        stream.0.load(Ordering::SeqCst)
    }

    /// Returns a moment. The work of all streams that was enqueued before that moment is completed.
    #[inline]
    pub fn completed_by_all(&self) -> u64 {
        self.completed.0.load(Ordering::SeqCst)
    }

    /// Returns a number that changes whenever work becomes known to be completed.
    #[inline]
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_of_one_stream_leaves_others() {
        let (moments, one, other) =
            (Moments::default(), Completed::default(), Completed::default());
        let freed = moments.now();
        let wait = moments.begin();
        let later = moments.now();
        moments.complete(&one, wait);
        assert!(freed < moments.completed(&one) && later >= moments.completed(&one));
        assert!(freed >= moments.completed(&other));
        let before = moments.changes();
        moments.complete(&one, wait);
        assert_eq!(moments.changes(), before, "nothing new");
        let wait = moments.begin();
        moments.complete_all(wait);
        assert!(later < moments.completed(&other) && moments.changes() > before);
    }
}
