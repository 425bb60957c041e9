//! Callbacks that can give memory back when a heap is short.

use std::cell::Cell;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::program::Callback;
use crate::{fork, program};

/// Keeps a reclaimer registered.
#[must_use]
pub struct Reclaimer {
    reclaimers: Weak<Reclaimers>,
    reclaimer: ReclaimerFn,
}

impl Drop for Reclaimer {
    fn drop(&mut self) {
        if let Some(reclaimers) = self.reclaimers.upgrade()
            && reclaimers.is_here()
        {
            reclaimers.lock().retain(|other| !Arc::ptr_eq(other, &self.reclaimer));
        }
    }
}

impl fmt::Debug for Reclaimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reclaimer")
    }
}

type ReclaimerFn = Arc<Callback<Box<dyn Fn(u64) -> u64 + Send + Sync>>>;

/// What is asked, in the order of registration.
pub(crate) struct Reclaimers {
    list: Mutex<Vec<ReclaimerFn>>,
    /// Threads that are asking. A request of a reclaimer must not ask again.
    asking: Mutex<Vec<ThreadMark>>,
    /// The count of forks when it was made: a forked child leaves the lock alone, which a thread of
    /// its parent may have held.
    forks: u32,
}

impl Default for Reclaimers {
    fn default() -> Reclaimers {
        Reclaimers { list: Mutex::default(), asking: Mutex::default(), forks: fork::count() }
    }
}

/// An address that no other living thread has.
#[derive(Clone, Copy, PartialEq, Eq)]
struct ThreadMark(usize);

impl ThreadMark {
    fn of_this_thread() -> ThreadMark {
        thread_local! {
            /// Without a destructor, so that it is there at the thread's end too.
            static MARK: Cell<u8> = const { Cell::new(0) };
        }
        MARK.with(|mark| ThreadMark(std::ptr::from_ref(mark).addr()))
    }
}

impl Reclaimers {
    pub(crate) fn register(
        self: &Arc<Reclaimers>,
        reclaimer: impl Fn(u64) -> u64 + Send + Sync + 'static,
    ) -> Reclaimer {
        let reclaimer: ReclaimerFn = Arc::new(Callback::new(Box::new(reclaimer)));
        if self.is_here() {
            self.lock().push(reclaimer.clone());
        }
        Reclaimer { reclaimers: Arc::downgrade(self), reclaimer }
    }

    /// Asks each once for `missing` bytes, with no lock held. Returns the bytes that they say went
    /// back, or `None` if there are none, or if this thread is asking those of this heap already.
    pub(crate) fn ask(&self, missing: u64) -> Option<u64> {
        let reclaimers = self.lock().clone();
        let this_thread = ThreadMark::of_this_thread();
        if reclaimers.is_empty() || self.asking().contains(&this_thread) {
            return None;
        }
        self.asking().push(this_thread);
        // One that panics gave nothing back; the others are asked all the same.
        let ask = |reclaimer: &ReclaimerFn| {
            reclaimer.get().map_or(0, |own| program::run(|| own(missing)).unwrap_or(0))
        };
        let regained = reclaimers.iter().map(ask).fold(0, u64::saturating_add);
        self.asking().retain(|thread| *thread != this_thread);
        Some(regained)
    }

    /// Returns `true` if it was made in this process.
    fn is_here(&self) -> bool {
        self.forks == fork::count()
    }

    fn asking(&self) -> MutexGuard<'_, Vec<ThreadMark>> {
        self.asking.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<ReclaimerFn>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
