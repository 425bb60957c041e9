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
    /// The count of forks when it was made: a forked child leaves the lock alone, which a thread of
    /// its parent may have held.
    forks: u32,
}

impl Default for Reclaimers {
    fn default() -> Reclaimers {
        Reclaimers { list: Mutex::default(), forks: fork::count() }
    }
}

thread_local! {
    /// `true` if this thread is asking reclaimers: one that allocates itself must not start over.
    static ASKING: Cell<bool> = const { Cell::new(false) };
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
    /// back, or `None` if there are none, or if this thread is asking already.
    pub(crate) fn ask(&self, missing: u64) -> Option<u64> {
        let reclaimers = self.lock().clone();
        if reclaimers.is_empty() || ASKING.get() {
            return None;
        }
        ASKING.set(true);
        // One that panics gave nothing back; the others are asked all the same.
        let ask = |reclaimer: &ReclaimerFn| {
            reclaimer.get().map_or(0, |own| program::run(|| own(missing)).unwrap_or(0))
        };
        let regained = reclaimers.iter().map(ask).fold(0, u64::saturating_add);
        ASKING.set(false);
        Some(regained)
    }

    /// Returns `true` if it was made in this process.
    fn is_here(&self) -> bool {
        self.forks == fork::count()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<ReclaimerFn>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
