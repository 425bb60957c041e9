//! Scopes: what is made in them is freed at their end.

use std::fmt;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use ndarray::Dimension;

use crate::array::scope_report::ScopeReport;
use crate::array::scope_state::{Lists, Part, ScopeState, close, innermost, open};
use crate::array::storage::Storage;
use crate::array::target::Target;
use crate::array::{ArrayBase, Element, Hold, UninitArray};
use crate::error::Error;
use crate::heap::Heap;
use crate::heap::region::Region;
use crate::stream::Stream;

impl Heap {
    /// Runs `work` with a scope: the arrays that it makes with the scope's [targets](Scope::on)
    /// are freed at its end, also when it panics, unless they were [kept](Scope::keep): an array that
    /// `work` returns or stores elsewhere without that is freed too. Frees are in
    /// the order of each array's last use and do not wait. An array that was freed so is an error to
    /// use, which says where the scope began.
    ///
    /// Arrays that were dropped before need nothing; those of a reference cycle, or forgotten, are
    /// freed all the same, and so are [batches](crate::Batches) that were uploaded in the scope, those
    /// ahead of their turn too. [Blocks](crate::Block) do not belong to scopes.
    ///
    /// ```
    /// # fn main() -> Result<(), gpuheap::Error> {
    /// let heap = gpuheap::Device::open("emulated:1GiB")?.heap()?;
    /// let (result, report) = heap.scope(|scope| -> Result<_, gpuheap::Error> {
    ///     let target = scope.target()?;
    ///     std::mem::forget(target.zeroed::<f32, _>(1000)?);
    ///     Ok(scope.keep(target.array(&[1.0, 2.0])?))
    /// });
    /// let kept = result?; // what the closure returned: its `?` ends the closure alone
    /// assert_eq!((report.freed, report.freed_bytes, report.kept.len()), (1, 4000, 1));
    /// assert_eq!(kept.to_vec()?, [1.0, 2.0]);
    /// # Ok(()) }
    /// ```
    #[track_caller]
    pub fn scope<R>(&self, work: impl FnOnce(&Scope) -> R) -> (R, ScopeReport) {
        let scope = Scope::new(self, Location::caller());
        let end = End { scope: &scope, of_thread: false };
        let result = work(&scope);
        (result, end.now())
    }

    /// Runs `work` as [`scope`](Heap::scope) does, with a scope of all arrays that this thread makes of
    /// this heap until `work` returns, with any target. Of nested ones an array belongs to the innermost, and one that was kept
    /// there to the next.
    #[track_caller]
    pub fn thread_scope<R>(&self, work: impl FnOnce(&Scope) -> R) -> (R, ScopeReport) {
        let scope = Scope::new(self, Location::caller());
        open(&scope.state);
        let end = End { scope: &scope, of_thread: true };
        let result = work(&scope);
        (result, end.now())
    }
}

/// A part of a program whose end frees what was made in it: from [`Heap::scope`] and
/// [`Heap::thread_scope`].
pub struct Scope {
    heap: Heap,
    state: Arc<ScopeState>,
    /// Watches the peak. `None` for a batch, and on a device that is gone.
    region: Option<Region>,
}

impl Scope {
    fn new(heap: &Heap, began: &'static Location<'static>) -> Scope {
        Scope::of(heap, began, Part::Code, innermost(heap))
    }

    /// That of one batch of those that were asked for there.
    pub(crate) fn of_batch(
        heap: &Heap,
        asked: &'static Location<'static>,
        outer: Option<Arc<ScopeState>>,
    ) -> Scope {
        Scope::of(heap, asked, Part::Batch, outer)
    }

    fn of(
        heap: &Heap,
        began: &'static Location<'static>,
        part: Part,
        outer: Option<Arc<ScopeState>>,
    ) -> Scope {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let state = ScopeState {
            heap: heap.clone(),
            began,
            part,
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            outer,
            lists: Mutex::new(Lists { open: true, ..Lists::default() }),
        };
        let region = match part {
            Part::Code => heap.carried_region().ok(),
            Part::Batch => None,
        };
        Scope { heap: heap.clone(), state: Arc::new(state), region }
    }

    /// Where arrays are made that belong to the scope and are first used on `stream`. Once the scope
    /// ended, nothing can be made with it.
    pub fn on(&self, stream: &Stream) -> Target {
        self.heap.on(stream).within(Some(self.state.clone()))
    }

    /// The same on the heap's own stream.
    ///
    /// # Errors
    ///
    /// The errors of [`Heap::target`].
    pub fn target(&self) -> Result<Target, Error> {
        Ok(self.heap.target()?.within(Some(self.state.clone())))
    }

    /// Most bytes of the heap's device memory that were live at once beyond those live when the scope
    /// began: [`RegionUsage::peak`](crate::RegionUsage::peak). Other threads' count too, and memory that
    /// belongs to no scope. Of nested scopes an outer one counts what the inner ones do. Exact if one thread
    /// uses the heap; else off by at most twice as much as [`live_peak`](crate::AllocStats::live_peak). Does
    /// not wait for the device.
    ///
    /// # Errors
    ///
    /// A forked child; a device that was reset.
    pub fn peak(&self) -> Result<u64, Error> {
        self.heap.check_alive()?;
        self.region.as_ref().map_or(Ok(0), Region::carried_peak)
    }

    /// The heap.
    pub fn heap(&self) -> &Heap {
        &self.heap
    }

    /// Moves an array, of which a handle or a reference to one is given, out of the scope: its end
    /// does not free the memory, and reports it if it is still there. It then belongs to the thread
    /// scope in which this one began, if any. An array of a batch that was uploaded in the scope
    /// leaves its turn as well. Arrays that do not belong to the scope are left as they are.
    pub fn keep<A: Handle>(&self, array: A) -> A {
        array.leave(self);
        array
    }

    pub(crate) fn state(&self) -> &Arc<ScopeState> {
        &self.state
    }

    fn let_go(&self, storage: &Arc<Storage>) {
        if self.heap.is_forked() || !self.state.has_or_has_a_batch_of(storage) {
            return;
        }
        self.state.lock().kept.push(storage);
        match &self.state.outer {
            None => storage.join(None),
            Some(outer) => {
                if outer.add(storage).is_err() {
                    // Its end frees what belongs to it, and that end was quicker. The heap counts
                    // what fails.
                    let _ = storage.free_early(outer.how());
                }
            }
        }
    }
}

/// A handle to an array that can be [kept](Scope::keep): every kind of array and view, and
/// references to them.
pub trait Handle: sealed::Handle {}

impl<A: sealed::Handle> Handle for A {}

mod sealed {
    pub trait Handle {
        fn leave(&self, scope: &super::Scope);
    }
}

impl<S: Hold, T: Element, D: Dimension> sealed::Handle for ArrayBase<S, T, D> {
    fn leave(&self, scope: &Scope) {
        scope.let_go(self.storage());
    }
}

impl<T: Element, D: Dimension> sealed::Handle for UninitArray<T, D> {
    fn leave(&self, scope: &Scope) {
        self.0.leave(scope);
    }
}

impl<A: sealed::Handle> sealed::Handle for &A {
    fn leave(&self, scope: &Scope) {
        (**self).leave(scope);
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.state.fmt(f)
    }
}

/// The end of a scope, also by a panic.
struct End<'a> {
    scope: &'a Scope,
    of_thread: bool,
}

impl End<'_> {
    fn now(self) -> ScopeReport {
        self.close();
        let peak = self.scope.peak().ok();
        let report = ScopeReport { peak, ..self.scope.state.end() };
        std::mem::forget(self);
        report
    }

    fn close(&self) {
        if self.of_thread {
            close();
        }
    }
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.close();
        self.scope.state.end();
    }
}
