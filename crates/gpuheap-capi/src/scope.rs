//! Implements scopes. A scope has the allocations that its thread makes before the scope ends.

use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustc_hash::FxHashMap;

/// A scope of one thread and one heap.
#[derive(Debug)]
pub(crate) struct Scope {
    /// Address of the heap's handle. No other heap of the process ever gets this address.
    pub(crate) heap: usize,
    pub(crate) name: String,
    state: Mutex<State>,
}

/// Figures of a scope, in bytes unless stated otherwise. Set size to sizeof(gpuheap_scope_report)
/// before calling gpuheap_close_scope.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct gpuheap_scope_report {
    /// sizeof(gpuheap_scope_report).
    pub size: usize,
    /// Number of allocations made inside the scope.
    pub allocations: u64,
    /// Sum of the requested sizes of the allocations made inside the scope.
    pub allocated_bytes: u64,
    /// Peak of the live bytes of allocations made inside the scope.
    pub peak: u64,
    /// Number of allocations that the end of the scope freed.
    pub freed_at_end: u64,
    /// Sum of the requested sizes of the allocations that the end of the scope freed.
    pub freed_at_end_bytes: u64,
}

#[derive(Debug, Default)]
struct State {
    /// Requested bytes of the live allocations, keyed by address.
    live: FxHashMap<u64, u64>,
    live_bytes: u64,
    report: gpuheap_scope_report,
}

/// Number of open scopes of all threads. Each allocation loads this number. While it is 0, the
/// allocation does nothing more for scopes.
static OPEN_OF_ALL: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The open scopes of this thread, innermost last.
    static OPEN: RefCell<Vec<Arc<Scope>>> = const { RefCell::new(Vec::new()) };
}

/// Returns `true` if any thread has an open scope.
#[inline]
pub(crate) fn any() -> bool {
    OPEN_OF_ALL.load(Ordering::Relaxed) != 0
}

/// Returns the innermost open scope of this thread for a heap. While the thread ends, returns
/// `None`.
pub(crate) fn innermost(heap: usize) -> Option<Arc<Scope>> {
    let find = |open: &Vec<Arc<Scope>>| open.iter().rev().find(|scope| scope.heap == heap).cloned();
    OPEN.try_with(|open| find(&open.borrow())).ok().flatten()
}

impl Scope {
    /// Opens a scope of this thread, inside the thread's other open scopes.
    pub(crate) fn open(heap: usize, name: &str) -> Arc<Scope> {
        let opened = Arc::new(Scope { heap, name: name.to_owned(), state: Mutex::default() });
        OPEN.with_borrow_mut(|open| open.push(opened.clone()));
        OPEN_OF_ALL.fetch_add(1, Ordering::Relaxed);
        opened
    }

    /// Closes the scope. Returns `false` if another thread opened it.
    pub(crate) fn close(self: &Arc<Scope>) -> bool {
        let was_open = OPEN.with_borrow_mut(|open| {
            let place = open.iter().position(|open| Arc::ptr_eq(open, self));
            place.map(|place| open.remove(place)).is_some()
        });
        if was_open {
            OPEN_OF_ALL.fetch_sub(1, Ordering::Relaxed);
        }
        was_open
    }

    /// Adds an allocation to the scope.
    pub(crate) fn enter(&self, address: u64, bytes: u64) {
        let mut state = self.lock();
        state.live.insert(address, bytes);
        state.live_bytes += bytes;
        state.report.allocations += 1;
        state.report.allocated_bytes += bytes;
        state.report.peak = state.report.peak.max(state.live_bytes);
    }

    /// Removes an allocation from the scope, because it is freed or kept.
    pub(crate) fn leave(&self, address: u64) {
        let mut state = self.lock();
        if let Some(bytes) = state.live.remove(&address) {
            state.live_bytes -= bytes;
        }
    }

    /// Removes the scope's live allocations from the heap's table, each by a call of `take`. Counts
    /// them in the report as freed at the scope's end.
    pub(crate) fn take_all<T>(&self, take: impl Fn(u64) -> Option<T>) -> Vec<(u64, T)> {
        let mut state = self.lock();
        // The lock is held during the calls of `take`. Another thread that frees an allocation
        // first removes it from this scope, so an address here never belongs to a newer allocation.
        let live: Vec<_> = std::mem::take(&mut state.live).into_iter().collect();
        let mut taken = Vec::with_capacity(live.len());
        for (address, bytes) in live {
            if let Some(held) = take(address) {
                state.report.freed_at_end += 1;
                state.report.freed_at_end_bytes += bytes;
                taken.push((address, held));
            }
        }
        taken
    }

    pub(crate) fn report(&self) -> gpuheap_scope_report {
        self.lock().report
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
