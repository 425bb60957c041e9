//! Scopes. The end of a scope frees the arrays made in it.

use std::fmt;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use ndarray::Dimension;

use crate::Caller;
use crate::array::scope_report::ScopeReport;
use crate::array::scope_state::{Lists, ScopeKind, ScopeState, close, innermost, open};
use crate::array::storage::Storage;
use crate::array::target::Target;
use crate::array::{ArrayBase, ArrayData, Element, UninitArray};
use crate::error::Error;
use crate::heap::Heap;
use crate::stream::Stream;

impl Heap {
    /// Runs `work` with a scope. The scope's end frees the arrays that `work` made with the scope's
    /// [targets](Scope::on), also after a panic. That includes arrays that `work` returns or stores
    /// elsewhere, unless they were [kept](Scope::keep). Frees are in the order of each array's last
    /// use and do not wait. A later use of a freed array is an error that names the line where the
    /// scope began.
    ///
    /// The scope's end also frees arrays in a reference cycle, forgotten arrays, and
    /// [batches](crate::Batches) uploaded in the scope, even before their turn.
    /// [Blocks](crate::Block) do not belong to scopes.
    ///
    /// ```
    /// # fn main() -> Result<(), gpuheap::Error> {
    /// let heap = gpuheap::Device::open("emulated:1GiB")?.heap()?;
    /// let (result, report) = heap.scope(|scope| -> Result<_, gpuheap::Error> {
    ///     let target = scope.target()?;
    ///     std::mem::forget(target.zeroed::<f32, _>(1000)?);
    ///     Ok(scope.keep(target.array(&[1.0, 2.0])?))
    /// });
    /// let kept = result?; // a `?` in the closure returns from the closure only
    /// assert_eq!((report.freed, report.freed_bytes, report.kept.len()), (1, 4000, 1));
    /// assert_eq!(kept.to_vec()?, [1.0, 2.0]);
    /// # Ok(()) }
    /// ```
    #[track_caller]
    pub fn scope<R>(&self, work: impl FnOnce(&Scope) -> R) -> (R, ScopeReport) {
        let scope = Scope::new(self, Location::caller());
        let end = ScopeEnd { scope: &scope, of_thread: false };
        let result = work(&scope);
        (result, end.report())
    }

    /// Runs `work` with a scope, as [`scope`](Heap::scope) does. All arrays of this heap that this
    /// thread makes until `work` returns belong to the scope, whatever their target. If such scopes
    /// are nested, an array belongs to the innermost scope. An array that is [kept](Scope::keep)
    /// out of a scope belongs to the next outer scope.
    #[track_caller]
    pub fn thread_scope<R>(&self, work: impl FnOnce(&Scope) -> R) -> (R, ScopeReport) {
        let scope = Scope::new(self, Location::caller());
        open(&scope.state);
        let end = ScopeEnd { scope: &scope, of_thread: true };
        let result = work(&scope);
        (result, end.report())
    }
}

/// A section of a program. The end of the scope frees the arrays made in it. [`Heap::scope`] and
/// [`Heap::thread_scope`] make scopes.
pub struct Scope {
    heap: Heap,
    state: Arc<ScopeState>,
}

impl Scope {
    fn new(heap: &Heap, began: Caller) -> Scope {
        let scope = Scope::with_kind(heap, began, ScopeKind::Code, innermost(heap));
        if let Some(open) = heap.inner().open_scopes() {
            let state: Weak<ScopeState> = Arc::downgrade(&scope.state);
            open.began(scope.state.number, state);
        }
        scope
    }

    /// Makes the scope of one batch. `requested` is the line that requested the batches.
    pub(crate) fn for_batch(
        heap: &Heap,
        requested: Caller,
        outer: Option<Arc<ScopeState>>,
    ) -> Scope {
        Scope::with_kind(heap, requested, ScopeKind::Batch, outer)
    }

    fn with_kind(
        heap: &Heap,
        began: Caller,
        kind: ScopeKind,
        outer: Option<Arc<ScopeState>>,
    ) -> Scope {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let state = ScopeState {
            heap: heap.clone(),
            began,
            kind,
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            outer,
            lists: Mutex::new(Lists { open: true, ..Lists::default() }),
        };
        Scope { heap: heap.clone(), state: Arc::new(state) }
    }

    /// Returns a target whose arrays belong to the scope and are first used on `stream`. After the
    /// scope's end, the target makes no arrays.
    pub fn on(&self, stream: &Stream) -> Target {
        self.heap.on(stream).within(Some(self.state.clone()))
    }

    /// Returns a target on the heap's own stream, for arrays that belong to the scope.
    ///
    /// # Errors
    ///
    /// The errors of [`Heap::target`].
    pub fn target(&self) -> Result<Target, Error> {
        Ok(self.heap.target()?.within(Some(self.state.clone())))
    }

    /// Returns the heap.
    pub fn heap(&self) -> &Heap {
        &self.heap
    }

    /// Moves an array out of the scope. `array` is a handle or a reference to a handle. The scope's
    /// end then does not free the memory, and reports the memory if it still exists.
    ///
    /// If this scope began within a thread scope, the array then belongs to that thread scope. If
    /// the array is of a batch that was uploaded in this scope, the end of the batch's step does
    /// not free it either. An array that does not belong to this scope is returned unchanged.
    pub fn keep<A: Handle>(&self, array: A) -> A {
        array.leave(self);
        array
    }

    pub(crate) fn state(&self) -> &Arc<ScopeState> {
        &self.state
    }

    fn keep_storage(&self, storage: &Arc<Storage>) {
        if self.heap.is_forked() || !self.state.contains(storage) {
            return;
        }
        self.state.lock().kept.push(storage);
        match &self.state.outer {
            None => storage.join(None),
            Some(outer) => {
                if outer.add(storage).is_err() {
                    // The outer scope has ended, so the array is freed now. The heap counts frees
                    // that fail.
                    let _ = storage.free_early(outer.freed_by());
                }
            }
        }
    }
}

/// A handle to an array that can be [kept](Scope::keep): every kind of array and view, and
/// references to them.
pub trait Handle: sealed::Leave {}

impl<A: sealed::Leave> Handle for A {}

mod sealed {
    pub trait Leave {
        fn leave(&self, scope: &super::Scope);
    }
}

impl<S: ArrayData, T: Element, D: Dimension> sealed::Leave for ArrayBase<S, T, D> {
    fn leave(&self, scope: &Scope) {
        scope.keep_storage(self.storage());
    }
}

impl<T: Element, D: Dimension> sealed::Leave for UninitArray<T, D> {
    fn leave(&self, scope: &Scope) {
        self.0.leave(scope);
    }
}

impl<A: sealed::Leave> sealed::Leave for &A {
    fn leave(&self, scope: &Scope) {
        (**self).leave(scope);
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.state.fmt(f)
    }
}

/// Guard that ends the scope when it is dropped, also after a panic.
struct ScopeEnd<'a> {
    scope: &'a Scope,
    of_thread: bool,
}

impl ScopeEnd<'_> {
    fn report(self) -> ScopeReport {
        self.close();
        let report = self.scope.state.end();
        std::mem::forget(self);
        report
    }

    fn close(&self) {
        if self.of_thread {
            close();
        }
        if let Some(open) = self.scope.heap.inner().open_scopes() {
            open.ended(self.scope.state.number);
        }
    }
}

impl Drop for ScopeEnd<'_> {
    fn drop(&mut self) {
        self.close();
        self.scope.state.end();
    }
}
