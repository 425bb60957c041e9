//! Callbacks that can give memory back when a heap is short.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::program::Callback;
use crate::sync::this_thread;
use crate::{fork, program};

/// Registration of a reclaimer. Dropping it ends the registration.
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

/// Registered reclaimers, in the order of registration.
pub(crate) struct Reclaimers {
    list: Mutex<Vec<ReclaimerFn>>,
    /// [Identifiers](this_thread) of the threads inside a reclaimer. Their requests call no
    /// reclaimer of this heap.
    calling: Mutex<Vec<u64>>,
    /// Number of forks when this was made. A forked child does not take the lock, because a thread
    /// of its parent may have held it.
    forks: u32,
}

impl Default for Reclaimers {
    fn default() -> Reclaimers {
        Reclaimers { list: Mutex::default(), calling: Mutex::default(), forks: fork::count() }
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

    /// Calls each reclaimer once for `missing` bytes, with no lock held. Returns the sum of the
    /// bytes that they report. `None` if no reclaimer is registered, or if this thread is inside a
    /// reclaimer of this heap.
    pub(crate) fn call_all(&self, missing: u64) -> Option<u64> {
        let reclaimers = self.lock().clone();
        let this_thread = this_thread();
        if reclaimers.is_empty() || self.calling().contains(&this_thread) {
            return None;
        }
        self.calling().push(this_thread);
        // A reclaimer that panics counts as having given back nothing. The other reclaimers are
        // still called.
        let call = |reclaimer: &ReclaimerFn| {
            reclaimer.get().map_or(0, |own| program::run(|| own(missing)).unwrap_or(0))
        };
        let regained = reclaimers.iter().map(call).fold(0, u64::saturating_add);
        self.calling().retain(|thread| *thread != this_thread);
        Some(regained)
    }

    fn is_here(&self) -> bool {
        self.forks == fork::count()
    }

    fn calling(&self) -> MutexGuard<'_, Vec<u64>> {
        self.calling.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<ReclaimerFn>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
