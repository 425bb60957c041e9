//! How far work is known to have got, by what the program waited for.
//!
//! A context counts *moments*: each wait of the host begins one, and each event marks one. A free that
//! was made in an earlier moment than a completed wait is completed too. So a wait costs two additions
//! and a free one load, no lock is taken by either, and heaps look only if something was learnt.

use std::sync::atomic::{AtomicU64, Ordering};

/// The moments of one context.
#[derive(Debug, Default)]
pub struct Moments {
    /// The one that began last.
    last: AtomicU64,
    /// How often it was learnt that work is completed.
    learnt: AtomicU64,
    /// The context's whole work before this moment is completed.
    completed: Completed,
}

/// The moment before which a stream's work is known to be completed.
#[derive(Debug, Default)]
pub struct Completed(AtomicU64);

impl Moments {
    /// The moment that began last.
    pub fn now(&self) -> u64 {
        self.last.load(Ordering::SeqCst)
    }

    /// Begins a moment: work that was given to a stream before is before it.
    pub fn begin(&self) -> u64 {
        self.last.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Notes that what a stream was given before `moment` is completed.
    pub fn complete(&self, stream: &Completed, moment: u64) {
        if stream.0.fetch_max(moment, Ordering::SeqCst) < moment {
            self.learnt.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Notes that what all streams were given before `moment` is completed.
    pub fn complete_all(&self, moment: u64) {
        self.complete(&self.completed, moment);
    }

    /// The moment before which the work of a stream is completed.
    pub fn completed(&self, stream: &Completed) -> u64 {
        stream.0.load(Ordering::SeqCst).max(self.completed.0.load(Ordering::SeqCst))
    }

    /// The moment before which the work of all streams is completed.
    pub fn completed_by_all(&self) -> u64 {
        self.completed.0.load(Ordering::SeqCst)
    }

    /// A number that changes whenever something is learnt.
    pub fn learnt(&self) -> u64 {
        self.learnt.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_learnt_of_one_stream_says_nothing_of_another() {
        let (moments, one, other) =
            (Moments::default(), Completed::default(), Completed::default());
        let freed = moments.now();
        let wait = moments.begin();
        let later = moments.now();
        moments.complete(&one, wait);
        assert!(freed < moments.completed(&one) && later >= moments.completed(&one));
        assert!(freed >= moments.completed(&other));
        let learnt = moments.learnt();
        moments.complete(&one, wait);
        assert_eq!(moments.learnt(), learnt, "nothing new");
        let wait = moments.begin();
        moments.complete_all(wait);
        assert!(later < moments.completed(&other) && moments.learnt() > learnt);
    }
}
