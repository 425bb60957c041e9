//! Trait through which a context calls its holders, the heaps. A context notifies its heaps of a
//! reset, and heaps visit each other.

use std::any::Any;
use std::cell::Cell;
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use gpuheap_driver::CUdevice;
use gpuheap_pool::SourceResult;

/// A heap that holds memory of a context.
pub(crate) trait Holder: Any + Send + Sync {
    /// Gives back memory that a reset does not free. A stream-ordered pool and all allocations from
    /// the pool outlive the context (the emulator reports them as in use). Pinned memory has to be
    /// unmapped by its owner. The context is still alive and idle. Must not panic.
    fn before_reset(&self);

    /// Handles the end of a reset. `is_reset` is `false` if the driver refused the reset.
    fn after_reset(&self, is_reset: bool);

    /// Gives another device access to the mapped virtual memory.
    fn open_to(&self, reader: CUdevice) -> SourceResult;

    /// Returns `true` if any stream of the heap is capturing a graph, or if the query fails.
    fn is_any_capturing(&self) -> bool;
}

/// Holders that a query kept alive. Drop them with no lock held: a heap that ends drops its
/// callbacks, and these run code of the program.
pub(crate) type Visited = Vec<Arc<dyn Holder>>;

#[derive(Default)]
pub(crate) struct Holders(Mutex<Vec<RegisteredHolder>>);

/// A heap and a lock. A thread that [visits](Holders::visit) the heap read-locks it meanwhile.
#[derive(Clone)]
struct RegisteredHolder {
    holder: Weak<dyn Holder>,
    visits: Arc<RwLock<()>>,
}

thread_local! {
    /// `true` while this thread visits heaps. The end of a heap drops its reclaimers. If the drop
    /// of a reclaimer allocates, that request does not visit other heaps.
    static VISITING: Cell<bool> = const { Cell::new(false) };
}

/// Guard that clears `VISITING` when it is dropped, also after a panic.
struct Visiting;

impl Drop for Visiting {
    fn drop(&mut self) {
        VISITING.set(false);
    }
}

/// Returns `true` while this thread visits heaps. A visit keeps other heaps alive for a moment.
pub(crate) fn is_visiting() -> bool {
    VISITING.get()
}

impl Holders {
    /// Registers `holder` for as long as it lives. A [visit](Holders::visit) keeps the holder
    /// alive, and takes the read lock of `visits`. To wait for all visits, take the write lock.
    pub(crate) fn register(&self, holder: Weak<dyn Holder>, visits: Arc<RwLock<()>>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|known| known.holder.strong_count() > 0);
        known.push(RegisteredHolder { holder, visits });
    }

    /// Returns the live holders. The caller drops them with no lock held. Unlike the drop of a
    /// heap's last clone, the drop of a holder must not write a log line.
    pub(crate) fn all(&self) -> Visited {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.iter().filter_map(|known| known.holder.upgrade()).collect()
    }

    /// Calls `visit` with each live holder, one after the other. If this thread is visiting
    /// already, does nothing. The caller holds no lock of any heap. A heap that loses its last
    /// owner meanwhile ends on this thread, before the next heap is visited.
    pub(crate) fn visit(&self, mut visit: impl FnMut(Arc<dyn Holder>)) {
        if VISITING.replace(true) {
            return;
        }
        let _visiting = Visiting;
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for RegisteredHolder { holder, visits } in known {
            let _visit = visits.read().unwrap_or_else(PoisonError::into_inner);
            if let Some(holder) = holder.upgrade() {
                visit(holder);
            }
        }
    }

    /// Returns `true` if a stream of any heap captures a graph. A wait for the device would break
    /// the capture. The caller holds no lock of any heap.
    pub(crate) fn is_any_capturing(&self) -> bool {
        // If this thread visits heaps already, `visit` does nothing. Then assume that a stream
        // captures.
        let mut is_any = is_visiting();
        self.visit(|holder| is_any |= holder.is_any_capturing());
        is_any
    }
}
