//! State of a scope: its arrays and batches, and the scopes that are open on a thread.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use gpuheap_publish::OpenScope;

use crate::Caller;
use crate::array::scope_report::{Kept, ScopeReport};
use crate::array::storage::Storage;
use crate::error::{Error, ErrorKind, Freed};
use crate::heap::Heap;
use crate::heap::open_scopes::PublishedScope;

/// State shared by a scope, its targets and its arrays.
pub(crate) struct ScopeState {
    pub(super) heap: Heap,
    pub(super) began: Caller,
    /// Index of the scope; later scopes have greater indices.
    pub(super) number: u64,
    pub(super) kind: ScopeKind,
    /// The innermost `Heap::thread_scope` in which this scope began. For a batch, the scope in
    /// which the batch was uploaded.
    pub(super) outer: Option<Arc<ScopeState>>,
    pub(super) lists: Mutex<Lists>,
}

/// Section of a program that a scope covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScopeKind {
    Code,
    /// Step of an iteration. The scope contains the batch that the step uses.
    Batch,
}

#[derive(Default)]
pub(super) struct Lists {
    pub(super) open: bool,
    /// `true` once the scope has ended. A scope that is only closed to new arrays has not ended.
    pub(super) over: bool,
    pub(super) members: Few<Storage>,
    pub(super) kept: Few<Storage>,
    /// Batches that were uploaded in the scope. A batch is freed when the iteration's step that
    /// uses it ends, or when this scope ends, if that is earlier.
    pub(super) batches: Few<ScopeState>,
}

impl ScopeState {
    pub(crate) fn is_open(&self) -> bool {
        !self.heap.is_forked() && self.lock().open
    }

    /// Returns the scope for a new array that is made with the target of an array in this scope. If
    /// this scope is open, returns this scope. If it is a batch and the iteration's step has ended,
    /// returns the scope around the batch, because results outlive the step.
    pub(crate) fn for_new_arrays(self: Arc<Self>) -> Option<Arc<ScopeState>> {
        if self.is_open() {
            return Some(self);
        }
        match self.kind {
            ScopeKind::Code => None,
            ScopeKind::Batch => self.outer.clone()?.for_new_arrays(),
        }
    }

    /// Closes the scope to new arrays. The scope's end frees the arrays made before.
    pub(crate) fn close(&self) {
        if !self.heap.is_forked() {
            self.lock().open = false;
        }
    }

    /// Returns the members that still exist.
    pub(crate) fn members(&self) -> Vec<Arc<Storage>> {
        if self.heap.is_forked() {
            return Vec::new();
        }
        let lists = self.lock();
        lists.members.alive().filter(|storage| self.has(storage)).collect()
    }

    /// Returns the error for making an array after the scope has ended.
    pub(super) fn ended(&self) -> Error {
        let (file, line) = (self.began.file(), self.began.line());
        let what = match self.kind {
            ScopeKind::Code => format!("the scope that began at {file}:{line} ended"),
            ScopeKind::Batch => {
                format!("the upload of a batch, requested at {file}:{line}, has ended")
            }
        };
        ErrorKind::Ended.error(format!(
            "{what}, and no array can be made in it; make the array with a target of the heap"
        ))
    }

    pub(crate) fn check_open(&self) -> Result<(), Error> {
        if self.is_open() { Ok(()) } else { Err(self.ended()) }
    }

    /// Registers a storage, so that the scope's end frees it.
    pub(crate) fn add(self: &Arc<Self>, storage: &Arc<Storage>) -> Result<(), Error> {
        // The storage joins the scope before it is listed. As soon as it is listed, the scope may
        // end, and then frees only storages that have joined it.
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

    /// If the scope around a batch has ended, returns an error, because the end of that scope freed
    /// the batch.
    pub(crate) fn check_batch(&self) -> Result<(), Error> {
        if self.heap.is_forked() || !self.lock().over {
            return Ok(());
        }
        Err(self.outer.as_ref().map_or_else(|| self.ended(), |outer| outer.ended()))
    }

    pub(super) fn has(&self, storage: &Storage) -> bool {
        storage.scope().is_some_and(|scope| std::ptr::eq(&*scope, self))
    }

    /// Returns `true` if a storage belongs to the scope, or to a batch that was uploaded in it.
    pub(super) fn contains(&self, storage: &Storage) -> bool {
        let mut scope = storage.scope();
        while let Some(inner) = scope {
            if std::ptr::eq(&*inner, self) {
                return true;
            }
            scope = inner.outer.clone().filter(|_| inner.kind == ScopeKind::Batch);
        }
        false
    }

    /// Returns the reason for a free by the scope's end. The freed array records this reason.
    pub(super) fn freed_by(&self) -> Freed {
        match self.kind {
            ScopeKind::Code => Freed::Scope(self.began),
            ScopeKind::Batch => Freed::Batch(self.began),
        }
    }

    pub(crate) fn end(&self) -> ScopeReport {
        self.end_as(self.freed_by())
    }

    /// Frees the members of the scope and of its batches.
    fn end_as(&self, freed_by: Freed) -> ScopeReport {
        let Lists { members, kept, batches, .. } = if !self.heap.is_forked() {
            std::mem::replace(&mut *self.lock(), Lists { over: true, ..Lists::default() })
        } else {
            Lists::default()
        };
        let began = self.began;
        let mut report =
            ScopeReport { began, freed: 0, freed_bytes: 0, kept: Vec::new(), failed: Vec::new() };
        for batch in batches.alive() {
            let of_batch = batch.end_as(freed_by);
            report.freed += of_batch.freed;
            report.freed_bytes += of_batch.freed_bytes;
            report.failed.extend(of_batch.failed);
        }
        for storage in members.alive().filter(|storage| self.has(storage)) {
            match storage.free_early(freed_by) {
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
            let (bytes, kind, made) = (storage.bytes(), storage.kind(), storage.made_at());
            report.kept.push(Kept { address, bytes, kind, made });
        }
        report
    }

    /// Returns the bytes that the scope's end would free.
    fn live(&self) -> u64 {
        let members = self.members().into_iter().filter(|storage| storage.address().is_some());
        let own: u64 = members.map(|storage| storage.bytes()).sum();
        let batches: Vec<_> = self.lock().batches.alive().collect();
        own + batches.iter().map(|batch| batch.live()).sum::<u64>()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Lists> {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PublishedScope for ScopeState {
    fn figures(&self) -> OpenScope {
        let name = format!("{}:{}", self.began.file(), self.began.line());
        OpenScope { name, live: self.live(), ..OpenScope::default() }
    }
}

impl Drop for ScopeState {
    /// Drops the outer scopes in a loop, because recursion over a long chain would exhaust the
    /// stack.
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

/// List of weak references. Dead references are removed whenever the list has doubled since the
/// last removal. The list therefore has at most twice as many entries as the most references that
/// were alive at the same time.
pub(super) struct Few<T> {
    entries: Vec<Weak<T>>,
    tidy_at: usize,
}

impl<T> Few<T> {
    pub(super) fn push(&mut self, one: &Arc<T>) {
        if self.entries.len() >= self.tidy_at {
            self.entries.retain(|entry| entry.strong_count() > 0);
            self.tidy_at = (2 * self.entries.len()).max(64);
        }
        self.entries.push(Arc::downgrade(one));
    }

    pub(super) fn alive(&self) -> impl Iterator<Item = Arc<T>> {
        self.entries.iter().filter_map(Weak::upgrade)
    }
}

impl<T> Default for Few<T> {
    fn default() -> Few<T> {
        Few { entries: Vec::new(), tidy_at: 0 }
    }
}

thread_local! {
    /// Number of open thread scopes. Every new array reads this number.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
    /// The open thread scopes, the innermost last. The list has no destructor, so that it exists at
    /// the thread's end too. The end of the outermost scope frees the list's memory.
    static OPEN: ManuallyDrop<RefCell<Vec<Arc<ScopeState>>>> =
        const { ManuallyDrop::new(RefCell::new(Vec::new())) };
}

/// Returns the scope for new memory of `heap`. `own` is the target's scope. If the thread has an
/// open scope too, returns the later of both scopes.
pub(crate) fn current(heap: &Heap, own: Option<&Arc<ScopeState>>) -> Option<Arc<ScopeState>> {
    if DEPTH.get() == 0 {
        return own.cloned();
    }
    match (innermost(heap), own) {
        (Some(thread), Some(own)) if own.number > thread.number => Some(own.clone()),
        (None, own) => own.cloned(),
        (thread, _) => thread,
    }
}

pub(super) fn innermost(heap: &Heap) -> Option<Arc<ScopeState>> {
    if DEPTH.get() == 0 {
        return None;
    }
    OPEN.with(|open| {
        open.borrow()
            .iter()
            .rev()
            .find(|scope| Arc::ptr_eq(scope.heap.inner(), heap.inner()))
            .cloned()
    })
}

/// Makes `scope` the innermost scope of this thread.
pub(super) fn open(scope: &Arc<ScopeState>) {
    OPEN.with(|open| open.borrow_mut().push(scope.clone()));
    DEPTH.set(DEPTH.get() + 1);
}

/// Closes this thread's innermost scope.
pub(super) fn close() {
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
    fn long_scope_forgets_dropped_arrays() {
        let heap = Device::open("emulated:1GiB").unwrap().heap().unwrap();
        let (longest, _) = heap.scope(|scope| {
            let target = scope.target().unwrap();
            let made = (0..10_000).map(|n| {
                let array = target.uninit::<u8, _>(1).unwrap();
                drop(if n % 2 == 0 { scope.keep(array) } else { array });
                let lists = scope.state().lock();
                lists.members.entries.len().max(lists.kept.entries.len())
            });
            made.max()
        });
        assert_eq!(longest, Some(64));
    }
}
