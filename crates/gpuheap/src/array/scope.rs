//! Scopes: what is made in them is freed at their end.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::mem::ManuallyDrop;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use ndarray::Dimension;

use crate::array::storage::Storage;
use crate::array::target::Target;
use crate::array::{ArrayBase, Element, Hold, UninitArray};
use crate::error::{Error, ErrorKind, Freed};
use crate::heap::Heap;
use crate::heap::region::Region;
use crate::kind::MemoryKind;
use crate::size::Bytes;
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

/// What the end of a scope found. Its text has at most 80 columns.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ScopeReport {
    /// Where in the program the scope began.
    pub began: &'static Location<'static>,
    /// How many arrays its end freed; those that were dropped before are not counted.
    pub freed: u64,
    /// Their bytes.
    pub freed_bytes: u64,
    /// [Peak](Scope::peak) of the scope, bytes. `None` if the device was reset, and in a forked child.
    pub peak: Option<u64>,
    /// What was moved out and is still there, in the order in which it was moved.
    pub kept: Vec<Kept>,
    /// Why arrays could not be freed, one error each.
    pub failed: Vec<Error>,
}

/// An array that was moved out of a scope.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Kept {
    /// Where the device sees it; zero for no bytes.
    pub address: u64,
    /// The bytes of its memory.
    pub bytes: u64,
    /// The kind of memory.
    pub kind: MemoryKind,
    /// Where in the program it was made.
    pub made: &'static Location<'static>,
}

impl fmt::Display for ScopeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ScopeReport { began, freed, freed_bytes, peak, kept, failed } = self;
        let bytes: u64 = kept.iter().map(|kept| kept.bytes).sum();
        writeln!(f, "scope that began at {}", Place(began, 60))?;
        write!(
            f,
            "  freed {freed} ({}), kept {} ({})",
            Bytes(*freed_bytes),
            kept.len(),
            Bytes(bytes)
        )?;
        if let Some(peak) = peak {
            write!(f, "\n  peak of device memory {} above its start", Bytes(*peak))?;
        }
        for Kept { address, bytes, kind, made } in kept {
            let what = format!("{address:#x}: {}, {kind}, made at ", Bytes(*bytes));
            let left = 76_usize.saturating_sub(what.len());
            write!(f, "\n    {what}{}", Place(made, left))?;
        }
        match failed.first() {
            None => Ok(()),
            Some(first) => {
                write!(f, "\n  failed to free {}; the first because", failed.len())?;
                wrapped(f, &first.to_string())
            }
        }
    }
}

/// Words in lines of at most 80 columns, where they are no longer than that.
fn wrapped(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    let mut column = usize::MAX;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if column.saturating_add(length + 1) > 80 {
            f.write_str("\n   ")?;
            column = 3;
        }
        write!(f, " {word}")?;
        column += length + 1;
    }
    Ok(())
}

/// A place in the program in that many columns: the end of its path says most.
struct Place(&'static Location<'static>, usize);

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{}:{}", self.0.file(), self.0.line());
        let length = text.chars().count();
        if length <= self.1 {
            return f.write_str(&text);
        }
        f.write_str("…")?;
        f.write_str(&text.chars().skip(length + 1 - self.1.max(1)).collect::<String>())
    }
}

/// What a scope, its targets and its arrays share.
pub(crate) struct ScopeState {
    heap: Heap,
    began: &'static Location<'static>,
    /// Later ones have greater numbers.
    number: u64,
    part: Part,
    /// The thread scope in which this one began; of a batch, the scope that it was uploaded in.
    outer: Option<Arc<ScopeState>>,
    lists: Mutex<Lists>,
}

/// What it is of a program whose end frees what was made in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Code,
    /// The turn of a batch.
    Batch,
}

#[derive(Default)]
struct Lists {
    open: bool,
    /// `true` once its end came, and not only that of an upload.
    over: bool,
    members: Few<Storage>,
    kept: Few<Storage>,
    /// Batches that were uploaded in it, which its end frees if their turns did not end before.
    batches: Few<ScopeState>,
}

impl ScopeState {
    pub(crate) fn is_open(&self) -> bool {
        !self.heap.is_forked() && self.lock().open
    }

    /// The scope of what is made like a member of this one: itself while it is open, and then, of
    /// a batch, that in which it was asked for. What a program makes of a batch outlives its turn.
    pub(crate) fn of_likes(self: Arc<Self>) -> Option<Arc<ScopeState>> {
        if self.is_open() {
            return Some(self);
        }
        match self.part {
            Part::Code => None,
            Part::Batch => self.outer.clone()?.of_likes(),
        }
    }

    /// Nothing more is made in it. What was is freed at its end.
    pub(crate) fn close(&self) {
        if !self.heap.is_forked() {
            self.lock().open = false;
        }
    }

    /// What belongs to it and is still there.
    pub(crate) fn members(&self) -> Vec<Arc<Storage>> {
        if self.heap.is_forked() {
            return Vec::new();
        }
        let lists = self.lock();
        lists.members.alive().filter(|storage| self.has(storage)).collect()
    }

    /// Nothing can be made in a scope that ended.
    fn ended(&self) -> Error {
        let (file, line) = (self.began.file(), self.began.line());
        let what = match self.part {
            Part::Code => format!("the scope that began at {file}:{line} ended"),
            Part::Batch => format!("the upload of a batch, asked for at {file}:{line}, is over"),
        };
        ErrorKind::Ended.error(format!(
            "{what}, and nothing can be made in it any more; make the array with a target of the heap"
        ))
    }

    /// An error where it ended.
    pub(crate) fn check_open(&self) -> Result<(), Error> {
        if self.is_open() { Ok(()) } else { Err(self.ended()) }
    }

    /// Has the end of the scope free a storage.
    pub(crate) fn add(self: &Arc<Self>, storage: &Arc<Storage>) -> Result<(), Error> {
        // First, so that a scope that ends meanwhile finds it to be its own.
        storage.join(Some(self.clone()));
        let mut lists = self.lock();
        if lists.open {
            lists.members.push(storage);
            return Ok(());
        }
        drop(lists);
        storage.join(None);
        Err(self.ended())
    }

    /// Registers a batch that is uploaded in this scope, so that the scope's end frees it.
    pub(crate) fn adopt(&self, batch: &Arc<ScopeState>) -> Result<(), Error> {
        self.check_open()?;
        let mut lists = self.lock();
        if lists.open {
            lists.batches.push(batch);
            return Ok(());
        }
        drop(lists);
        Err(self.ended())
    }

    /// An error if the scope that a batch was uploaded in ended, and freed it.
    pub(crate) fn check_batch(&self) -> Result<(), Error> {
        if self.heap.is_forked() || !self.lock().over {
            return Ok(());
        }
        Err(self.outer.as_ref().map_or_else(|| self.ended(), |outer| outer.ended()))
    }

    fn has(&self, storage: &Storage) -> bool {
        storage.scope().is_some_and(|scope| std::ptr::eq(&*scope, self))
    }

    /// Returns `true` if a storage belongs to it, or to a batch that was uploaded in it.
    fn has_or_has_a_batch_of(&self, storage: &Storage) -> bool {
        let mut scope = storage.scope();
        while let Some(inner) = scope {
            if std::ptr::eq(&*inner, self) {
                return true;
            }
            scope = inner.outer.clone().filter(|_| inner.part == Part::Batch);
        }
        false
    }

    /// How its end frees arrays.
    fn how(&self) -> Freed {
        match self.part {
            Part::Code => Freed::Scope(self.began),
            Part::Batch => Freed::Batch(self.began),
        }
    }

    pub(crate) fn end(&self) -> ScopeReport {
        self.end_as(self.how())
    }

    /// Frees its members and those of its batches.
    fn end_as(&self, how: Freed) -> ScopeReport {
        let Lists { members, kept, batches, .. } = if !self.heap.is_forked() {
            std::mem::replace(&mut *self.lock(), Lists { over: true, ..Lists::default() })
        } else {
            Lists::default()
        };
        let began = self.began;
        let mut report = ScopeReport {
            began,
            freed: 0,
            freed_bytes: 0,
            peak: None,
            kept: Vec::new(),
            failed: Vec::new(),
        };
        for batch in batches.alive() {
            let of_batch = batch.end_as(how);
            report.freed += of_batch.freed;
            report.freed_bytes += of_batch.freed_bytes;
            report.failed.extend(of_batch.failed);
        }
        for storage in members.alive().filter(|storage| self.has(storage)) {
            match storage.free_early(how) {
                Ok(true) => {
                    report.freed += 1;
                    report.freed_bytes += storage.bytes();
                }
                Ok(false) => {}
                Err(error) => report.failed.push(error),
            }
        }
        for storage in kept.alive() {
            let Some(address) = storage.address() else { continue };
            let (bytes, kind, made) = (storage.bytes(), storage.kind(), storage.made());
            report.kept.push(Kept { address, bytes, kind, made });
        }
        report
    }

    fn lock(&self) -> MutexGuard<'_, Lists> {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ScopeState {
    /// Drops the scopes around this one in a loop: a long chain of them would exhaust the stack.
    fn drop(&mut self) {
        let mut next = self.outer.take();
        while let Some(mut scope) = next.and_then(Arc::into_inner) {
            next = scope.outer.take();
        }
    }
}

impl fmt::Debug for ScopeState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "scope that began at {}:{}", self.began.file(), self.began.line())
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.state.fmt(f)
    }
}

/// Weak references, those to what went forgotten now and then: at most twice as many entries as
/// there ever were alive at once.
struct Few<T> {
    entries: Vec<Weak<T>>,
    tidy_at: usize,
}

impl<T> Few<T> {
    fn push(&mut self, one: &Arc<T>) {
        if self.entries.len() >= self.tidy_at {
            self.entries.retain(|entry| entry.strong_count() > 0);
            self.tidy_at = (2 * self.entries.len()).max(64);
        }
        self.entries.push(Arc::downgrade(one));
    }

    fn alive(&self) -> impl Iterator<Item = Arc<T>> {
        self.entries.iter().filter_map(Weak::upgrade)
    }
}

impl<T> Default for Few<T> {
    fn default() -> Few<T> {
        Few { entries: Vec::new(), tidy_at: 0 }
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

thread_local! {
    /// How many thread scopes are open: what every array that is made looks at.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
    /// Those scopes, the innermost last. Without a destructor, so that they are there at the thread's
    /// end too. The end of the outermost one gives the list's memory back.
    static OPEN: ManuallyDrop<RefCell<Vec<Arc<ScopeState>>>> =
        const { ManuallyDrop::new(RefCell::new(Vec::new())) };
}

/// The scope to which what is made of `heap` belongs: of the target's own and this thread's the
/// later one.
pub(crate) fn of(heap: &Heap, own: Option<&Arc<ScopeState>>) -> Option<Arc<ScopeState>> {
    if DEPTH.get() == 0 {
        return own.cloned();
    }
    match (innermost(heap), own) {
        (Some(thread), Some(own)) if own.number > thread.number => Some(own.clone()),
        (None, own) => own.cloned(),
        (thread, _) => thread,
    }
}

fn innermost(heap: &Heap) -> Option<Arc<ScopeState>> {
    if DEPTH.get() == 0 {
        return None;
    }
    OPEN.with(|open| open.borrow().iter().rev().find(|scope| scope.heap.is_same(heap)).cloned())
}

/// Makes a scope this thread's innermost.
fn open(scope: &Arc<ScopeState>) {
    OPEN.with(|open| open.borrow_mut().push(scope.clone()));
    DEPTH.set(DEPTH.get() + 1);
}

/// Ends what [`open`] began.
fn close() {
    let closed = OPEN.with(|open| {
        let mut open = open.borrow_mut();
        let closed = open.pop();
        if open.is_empty() {
            *open = Vec::new();
        }
        closed
    });
    DEPTH.set(DEPTH.get().saturating_sub(1));
    drop(closed);
}

#[cfg(test)]
#[cfg(feature = "emulator")]
mod tests {
    use crate::Device;

    #[test]
    fn a_long_scope_does_not_remember_what_went() {
        let heap = Device::open("emulated:1GiB").unwrap().heap().unwrap();
        let (longest, _) = heap.scope(|scope| {
            let target = scope.target().unwrap();
            let made = (0..10_000).map(|n| {
                let array = target.uninit::<u8, _>(1).unwrap();
                drop(if n % 2 == 0 { scope.keep(array) } else { array });
                let lists = scope.state.lock();
                lists.members.entries.len().max(lists.kept.entries.len())
            });
            made.max()
        });
        assert_eq!(longest, Some(64));
    }
}
