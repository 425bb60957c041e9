//! Scopes of Python as a heap sees them: bytes that were requested inside and are live, a budget,
//! and the buffers that the end of the scope frees.
//!
//! `gpuheap/_scopes.py` opens and closes them. A context variable there has the latest scope of the
//! calling context. A scope governs its [extent] alone: it passes to no other thread, and rests
//! while the generator or the coroutine that opened it is suspended. A heap without open scopes
//! pays one load of an atomic number for each allocation.
//!
//! [extent]: Extent

mod budget;
mod extent;
mod owned;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;
use pyo3::{ffi, intern};
use rustc_hash::FxHashMap;

pub(crate) use budget::{Budget, Charge, Request};
use extent::Extent;
use owned::{Charged, Holder, Kept, Owned};

use crate::owner::Owner;

/// Number of the last scope that was opened; 0 is no scope.
static LAST: AtomicU32 = AtomicU32::new(0);

/// A scope of one heap. `gpuheap.Scope` is its public face.
#[pyclass(frozen, module = "gpuheap._gpuheap", name = "_Account")]
pub(crate) struct Account {
    counts: Arc<Counts>,
    extent: Extent,
    /// `true` if a scope that rested was open in the context when this one was opened. That one may
    /// go on inside this one.
    has_resting: bool,
    /// The scope that the context had before.
    before: Mutex<Option<Py<Account>>>,
}

/// Figures of a scope. Memory that outlives the scope stays charged to it and to those around it.
pub(crate) struct Counts {
    owner: Arc<Owner>,
    number: u32,
    name: String,
    limit: Option<u64>,
    live: AtomicU64,
    peak: AtomicU64,
    is_closed: AtomicBool,
    /// The scope around it, of any heap.
    outer: Option<Arc<Counts>>,
    /// Open scopes of the same heap directly inside, by number.
    inside: Mutex<FxHashMap<u32, Weak<Counts>>>,
    owned: Mutex<Owned>,
    kept: Mutex<Vec<Kept>>,
}

impl Account {
    /// Opens a scope of a heap in the calling context. `resumable` are weak references to the
    /// generators and coroutines on the stack, the innermost first.
    pub(crate) fn open(
        py: Python<'_>,
        owner: &Arc<Owner>,
        name: String,
        limit: Option<u64>,
        resumable: Vec<Py<PyAny>>,
    ) -> PyResult<Account> {
        let before = skip_closed(py, latest(py)?);
        let around = innermost(py, None)?.map(|account| account.get().counts.clone());
        let mut has_resting = false;
        let mut next = before.as_ref().map(|before| before.clone_ref(py));
        while let Some(account) = next {
            let this = account.get();
            if !this.closed() && !this.extent.is_running(py)? {
                has_resting = true;
                break;
            }
            // The scopes before it were looked at when it was opened.
            next = if this.has_resting { this.before(py) } else { None };
        }
        let counts = Arc::new(Counts {
            owner: owner.clone(),
            number: LAST.fetch_add(1, Ordering::Relaxed) + 1,
            name,
            limit,
            live: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            is_closed: AtomicBool::new(false),
            outer: around,
            inside: Mutex::default(),
            owned: Mutex::default(),
            kept: Mutex::default(),
        });
        owner.open_scopes.fetch_add(1, Ordering::Relaxed);
        if let Some(around) = counts.around() {
            lock(&around.inside).insert(counts.number, Arc::downgrade(&counts));
        }
        let extent = Extent::new(resumable);
        Ok(Account { counts, extent, has_resting, before: Mutex::new(before) })
    }

    /// Returns the scope that the context had before.
    fn before(&self, py: Python<'_>) -> Option<Py<Account>> {
        lock(&self.before).as_ref().map(|before| before.clone_ref(py))
    }
}

#[pymethods]
impl Account {
    /// Ends the scope: later requests belong to the one around it. A second call does nothing.
    fn close(&self) {
        self.counts.close();
    }

    /// Number of the scope, as `_records()` has it.
    #[getter]
    fn number(&self) -> u32 {
        self.counts.number
    }

    /// Limit in bytes.
    #[getter]
    fn limit(&self) -> Option<u64> {
        self.counts.limit
    }

    /// Bytes that were requested inside and are live.
    #[getter]
    fn live(&self) -> u64 {
        self.counts.live.load(Ordering::Relaxed)
    }

    /// Most bytes that were requested inside and live at once.
    #[getter]
    fn peak(&self) -> u64 {
        self.counts.peak.load(Ordering::Relaxed)
    }

    /// The latest scope of the context before this one that is open.
    #[getter(before)]
    fn open_before(&self, py: Python<'_>) -> Option<Py<Account>> {
        skip_closed(py, self.before(py))
    }

    /// `True` once the scope ended.
    #[getter]
    fn closed(&self) -> bool {
        self.counts.is_closed.load(Ordering::Relaxed)
    }

    /// Number of buffers that the scope would free now, some of which may have ended.
    #[getter]
    fn owned(&self) -> usize {
        lock(&self.counts.owned).len()
    }

    /// Makes the scope free a buffer, or the memory of an array, at its end.
    fn adopt(&self, buffer: &Bound<'_, PyAny>) -> PyResult<()> {
        self.counts.adopt(buffer)
    }

    /// Takes out the buffers that the scope frees and that live, the oldest first.
    fn take_owned(&self, py: Python<'_>) -> PyResult<Vec<Py<PyAny>>> {
        let owned = std::mem::take(&mut *lock(&self.counts.owned));
        owned.into_objects(py)
    }

    /// Keeps an object beyond the scope, and beyond the open scopes inside it. `place` is the
    /// address and the bytes of its device memory. Memory of gpuheap that one of these scopes would
    /// free then belongs to the scope around.
    fn keep(&self, holder: &Bound<'_, PyAny>, place: Option<(u64, u64)>) -> PyResult<()> {
        let py = holder.py();
        let mut scopes = vec![self.counts.clone()];
        if let Some(inner) = innermost(py, Some(&self.counts.owner))? {
            let inside: Vec<_> = inner.get().counts.up_to(self.counts.number).collect();
            if inside.last().is_some_and(|last| Arc::ptr_eq(last, &self.counts)) {
                scopes = inside;
            }
        }
        // Memory of before the scope belongs to none of these, or to one around them.
        let mut was_owned = false;
        for scope in &scopes {
            was_owned |= lock(&scope.owned).remove(owned::number_of(holder));
        }
        if was_owned && let Some(around) = self.counts.around() {
            around.adopt(holder)?;
        }
        let Some((address, bytes)) = place else { return Ok(()) };
        let charged = owned::scope_of(holder);
        for scope in &scopes {
            let is_charged = match &charged {
                Charged::To(inner) => inner.is_inside(scope.number),
                Charged::Nothing => false,
                Charged::Unknown => true,
            };
            if !is_charged {
                continue;
            }
            let kept = Kept::new(holder, address, bytes)?;
            owned::push_kept(py, &mut lock(&scope.kept), kept);
        }
        Ok(())
    }

    /// Bytes that outlive the scope, but not on purpose. An open scope inside it may still free its
    /// own.
    fn stayed(&self, py: Python<'_>) -> PyResult<u64> {
        let inside: Vec<_> = lock(&self.counts.inside).values().filter_map(Weak::upgrade).collect();
        let open = inside.iter().filter(|scope| !scope.is_closed.load(Ordering::Relaxed));
        let inside: u64 = open.map(|scope| scope.live.load(Ordering::Relaxed)).sum();
        let kept = owned::kept_bytes(py, &self.counts)?;
        Ok(self.live().saturating_sub(kept).saturating_sub(inside))
    }

    /// Records of the memory that outlives the scope, but not on purpose, as dictionaries.
    fn leaked<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        owned::leaked(py, &self.counts)
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        // Scopes end one after the other. Each inside the one before would take a stack as deep as
        // the scopes are nested.
        let mut next = lock(&self.before).take();
        while let Some(account) = next {
            // SAFETY: the object is alive, and the interpreter ends objects with its lock held.
            let is_last = unsafe { ffi::Py_REFCNT(account.as_ptr()) } == 1;
            next = if is_last { lock(&account.get().before).take() } else { None };
        }
    }
}

impl Counts {
    fn is_of(&self, owner: &Owner) -> bool {
        std::ptr::eq(Arc::as_ptr(&self.owner), owner)
    }

    /// Number of the scope.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Returns whether the scope is the one of a number, or was opened inside that one.
    pub(crate) fn is_inside(self: &Arc<Counts>, number: u32) -> bool {
        self.up_to(number).any(|scope| scope.number == number)
    }

    /// Returns the scope and those around it, up to the one of a number. Scopes inside others have
    /// greater numbers.
    fn up_to(self: &Arc<Counts>, number: u32) -> impl Iterator<Item = Arc<Counts>> {
        std::iter::successors(Some(self.clone()), |scope| scope.outer.clone())
            .take_while(move |scope| scope.number >= number)
    }

    /// Returns the innermost open scope of the same heap around this one.
    fn around(&self) -> Option<Arc<Counts>> {
        let mut next = self.outer.as_ref();
        while let Some(scope) = next {
            if scope.is_of(&self.owner) && !scope.is_closed.load(Ordering::Relaxed) {
                return Some(scope.clone());
            }
            next = scope.outer.as_ref();
        }
        None
    }

    fn adopt(&self, buffer: &Bound<'_, PyAny>) -> PyResult<()> {
        // Before the lock: the interpreter may run the collector for a new object.
        let holder = Holder::new(buffer)?;
        lock(&self.owned).insert(buffer.py(), owned::number_of(buffer), holder);
        Ok(())
    }

    fn close(&self) {
        if self.is_closed.swap(true, Ordering::Relaxed) {
            return;
        }
        self.owner.open_scopes.fetch_sub(1, Ordering::Relaxed);
        if let Some(around) = self.around() {
            // The open scopes inside this one stay known here too: what they hold is no leak.
            let inside = lock(&self.inside).clone();
            let mut of_around = lock(&around.inside);
            of_around.remove(&self.number);
            of_around.extend(inside);
        }
    }
}

impl Drop for Counts {
    fn drop(&mut self) {
        self.close();
        // One after the other, as `Account`.
        let mut next = self.outer.take();
        while let Some(mut counts) = next.and_then(Arc::into_inner) {
            counts.close();
            next = counts.outer.take();
        }
    }
}

/// Returns the innermost scope that governs the caller: of a heap, or of any.
pub(crate) fn innermost(py: Python<'_>, owner: Option<&Owner>) -> PyResult<Option<Py<Account>>> {
    let mut found: Option<Py<Account>> = None;
    let mut next = latest(py)?;
    while let Some(account) = next {
        let this = account.get();
        next = this.before(py);
        let is_wanted = owner.is_none_or(|owner| this.counts.is_of(owner));
        if !is_wanted || this.closed() || !this.extent.is_running(py)? {
            continue;
        }
        // A generator that was resumed inside a later scope is inside that scope.
        let is_inner = match &found {
            None => true,
            Some(later) => later.get().extent.may_hold(py, &this.extent)?,
        };
        let has_resting = this.has_resting;
        if is_inner {
            found = Some(account);
        }
        if !has_resting {
            break;
        }
    }
    Ok(found)
}

/// Returns the innermost scope that governs the caller, of any heap.
#[pyfunction]
pub(crate) fn _innermost_scope(py: Python<'_>) -> PyResult<Option<Py<Account>>> {
    innermost(py, None)
}

/// Returns the latest scope of the calling context, which may rest or be closed.
fn latest(py: Python<'_>) -> PyResult<Option<Py<Account>>> {
    static CURRENT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let current = CURRENT.get_or_try_init(py, || {
        py.import("gpuheap._scopes")?.getattr("current").map(Bound::unbind)
    })?;
    let found = current.bind(py).call_method0(intern!(py, "get"))?;
    Ok(found.extract::<Option<Py<Account>>>()?)
}

/// Passes over scopes that are closed. The first open one forgets those that were closed before it.
fn skip_closed(py: Python<'_>, from: Option<Py<Account>>) -> Option<Py<Account>> {
    let mut next = from;
    while let Some(account) = &next {
        if !account.get().closed() {
            break;
        }
        next = account.get().before(py);
    }
    let open = next?;
    let mut older = open.get().before(py);
    while let Some(account) = &older {
        if !account.get().closed() {
            break;
        }
        older = account.get().before(py);
    }
    let forgotten = std::mem::replace(&mut *lock(&open.get().before), older);
    drop(forgotten);
    Some(open)
}

/// Locks a part of a scope. No Python code may run under the lock.
fn lock<T>(part: &Mutex<T>) -> MutexGuard<'_, T> {
    part.lock().unwrap_or_else(PoisonError::into_inner)
}
