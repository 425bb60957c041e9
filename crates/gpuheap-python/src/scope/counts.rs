//! Counts the memory of scopes. Live memory is charged to the scopes in which it was requested.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use gpuheap_publish::OpenScope;
use rustc_hash::FxHashMap;

use super::owned::{Kept, Owned};

/// Number of the latest scope. 0 means no scope.
static LAST: AtomicU32 = AtomicU32::new(0);

/// One heap's open scopes in all contexts.
#[derive(Default)]
pub(crate) struct OpenScopes {
    /// Number of open scopes. Each allocation reads it.
    count: AtomicUsize,
    /// The scopes, keyed by number.
    list: Mutex<FxHashMap<u32, Weak<Counts>>>,
}

impl OpenScopes {
    /// Returns whether any scope of the heap is open.
    pub(super) fn exist(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// Returns the figures of the scopes of a heap on `device`. Call this with the interpreter's
    /// lock held, because a scope may end here.
    pub(crate) fn figures(&self, device: &str) -> Vec<OpenScope> {
        let open: Vec<_> = lock(&self.list).values().cloned().collect();
        let figures = |scope: Arc<Counts>| OpenScope {
            name: scope.name.clone(),
            device: device.to_owned(),
            live: scope.live.load(Ordering::Relaxed),
            limit: scope.limit,
        };
        open.iter().filter_map(|scope| scope.upgrade().map(figures)).collect()
    }
}

/// Figures of a scope. Memory that outlives the scope stays charged to the scope and its outer
/// scopes.
pub(crate) struct Counts {
    /// Identity of the scope's heap.
    pub(super) heap: Arc<OpenScopes>,
    pub(crate) number: u32,
    pub(super) name: String,
    pub(super) limit: Option<u64>,
    pub(super) live: AtomicU64,
    pub(super) peak: AtomicU64,
    is_closed: AtomicBool,
    /// The next outer scope, of any heap.
    outer: Option<Arc<Counts>>,
    /// Open scopes of the same heap directly inside this scope, keyed by number.
    inside: Mutex<FxHashMap<u32, Weak<Counts>>>,
    pub(crate) owned: Mutex<Owned>,
    pub(crate) kept: Mutex<Kept>,
}

impl Counts {
    /// Opens a scope inside `outer`.
    pub(super) fn open(
        heap: &Arc<OpenScopes>,
        name: String,
        limit: Option<u64>,
        outer: Option<Arc<Counts>>,
    ) -> Arc<Counts> {
        let counts = Arc::new(Counts {
            heap: heap.clone(),
            number: LAST.fetch_add(1, Ordering::Relaxed) + 1,
            name,
            limit,
            live: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            is_closed: AtomicBool::new(false),
            outer,
            inside: Mutex::default(),
            owned: Mutex::default(),
            kept: Mutex::default(),
        });
        heap.count.fetch_add(1, Ordering::Relaxed);
        lock(&heap.list).insert(counts.number, Arc::downgrade(&counts));
        if let Some(around) = counts.around() {
            lock(&around.inside).insert(counts.number, Arc::downgrade(&counts));
        }
        counts
    }

    /// Ends the scope. A second call does nothing.
    pub(super) fn close(&self) {
        if self.is_closed.swap(true, Ordering::Relaxed) {
            return;
        }
        self.heap.count.fetch_sub(1, Ordering::Relaxed);
        lock(&self.heap.list).remove(&self.number);
        if let Some(around) = self.around() {
            // Moves the open inner scopes to the outer scope, because their memory is no leak of
            // this scope.
            let inside = lock(&self.inside).clone();
            let mut of_around = lock(&around.inside);
            of_around.remove(&self.number);
            of_around.extend(inside);
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }

    pub(super) fn belongs_to(&self, heap: &Arc<OpenScopes>) -> bool {
        Arc::ptr_eq(&self.heap, heap)
    }

    /// Returns whether this is scope `number`, or was opened inside it.
    pub(crate) fn is_inside(self: &Arc<Counts>, number: u32) -> bool {
        self.up_to(number).any(|scope| scope.number == number)
    }

    /// Returns this scope and its outer scopes, up to and including scope `number`. An inner scope
    /// has a greater number than its outer scopes.
    pub(crate) fn up_to(self: &Arc<Counts>, number: u32) -> impl Iterator<Item = Arc<Counts>> {
        std::iter::successors(Some(self.clone()), |scope| scope.outer.clone())
            .take_while(move |scope| scope.number >= number)
    }

    /// Returns the closest open outer scope of the same heap.
    pub(crate) fn around(&self) -> Option<Arc<Counts>> {
        let mut next = self.outer.as_ref();
        while let Some(scope) = next {
            if scope.belongs_to(&self.heap) && !scope.is_closed() {
                return Some(scope.clone());
            }
            next = scope.outer.as_ref();
        }
        None
    }

    /// Returns the live bytes of the open scopes directly inside this scope.
    pub(crate) fn live_inside(&self) -> u64 {
        let inside: Vec<_> = lock(&self.inside).values().filter_map(Weak::upgrade).collect();
        let open = inside.iter().filter(|scope| !scope.is_closed());
        open.map(|scope| scope.live.load(Ordering::Relaxed)).sum()
    }

    /// Returns this scope and the outer scopes of the same heap.
    pub(super) fn of_heap(&self) -> impl Iterator<Item = &Counts> {
        std::iter::successors(Some(self), |scope| scope.outer.as_deref())
            .filter(|scope| scope.belongs_to(&self.heap))
    }

    /// Limit in bytes; `None` after the scope ended.
    pub(super) fn limit_now(&self) -> Option<u64> {
        self.limit.filter(|_| !self.is_closed())
    }

    /// Returns whether the budget allows another `bytes`.
    pub(super) fn allows(&self, bytes: u64) -> bool {
        self.limit_now().is_none_or(|limit| {
            let live = self.live.load(Ordering::Relaxed);
            live.checked_add(bytes).is_some_and(|live| live <= limit)
        })
    }

    /// Adds `bytes` to the live bytes. If the sum would exceed the budget of the open scope, adds
    /// nothing and returns `false`.
    fn add(&self, bytes: u64) -> bool {
        let limit = self.limit_now();
        let grown = |live: u64| {
            live.checked_add(bytes).filter(|live| limit.is_none_or(|most| *live <= most))
        };
        match self.live.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown) {
            Ok(before) => {
                self.peak.fetch_max(before + bytes, Ordering::Relaxed);
                true
            }
            Err(_) => false,
        }
    }
}

impl Drop for Counts {
    fn drop(&mut self) {
        self.close();
        // Drops the outer scopes in a loop, because a recursion over deeply nested scopes could
        // overflow the stack.
        let mut next = self.outer.take();
        while let Some(mut counts) = next.and_then(Arc::into_inner) {
            counts.close();
            next = counts.outer.take();
        }
    }
}

/// Bytes charged to a scope and its outer scopes. Dropping the value ends the charge.
pub(crate) struct Charge {
    counts: Arc<Counts>,
    bytes: u64,
}

impl Charge {
    /// Charges `bytes` to `counts` and to all of its outer scopes of the same heap. If a scope's
    /// budget is exceeded, returns that scope's number as the error.
    pub(super) fn new(counts: &Arc<Counts>, bytes: u64) -> Result<Charge, u32> {
        for scope in counts.of_heap() {
            if !scope.add(bytes) {
                for charged in counts.of_heap().take_while(|one| one.number != scope.number) {
                    charged.live.fetch_sub(bytes, Ordering::Relaxed);
                }
                return Err(scope.number);
            }
        }
        Ok(Charge { counts: counts.clone(), bytes })
    }

    /// The innermost charged scope.
    pub(crate) fn scope(&self) -> &Arc<Counts> {
        &self.counts
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        for scope in self.counts.of_heap() {
            scope.live.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

/// Locks a field of a scope. No Python code may run under the lock.
pub(crate) fn lock<T>(part: &Mutex<T>) -> MutexGuard<'_, T> {
    part.lock().unwrap_or_else(PoisonError::into_inner)
}
