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
mod counts;
mod extent;
mod owned;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::{ffi, intern};

pub(crate) use budget::{Budget, adopt, charge};
pub(crate) use counts::{Charge, Counts, OpenScopes, lock};
use extent::Extent;
pub(crate) use extent::{innermost_frame, thread_serial};
pub(crate) use owned::Holder;

/// A scope of one heap. `gpuheap.Scope` is its public face.
#[pyclass(frozen, module = "gpuheap._gpuheap", name = "_Account")]
pub(crate) struct Account {
    pub(crate) counts: Arc<Counts>,
    extent: Extent,
    /// `true` if a resting scope was open in the context when this one was opened. The resting one
    /// may go on inside this one.
    has_resting: bool,
    /// The scope that the context had before.
    before: Mutex<Option<Py<Account>>>,
}

impl Account {
    /// Opens a scope of a heap in the calling context. `resumable` are weak references to the
    /// generators and coroutines on the stack, the innermost first.
    pub(crate) fn open(
        py: Python<'_>,
        heap: &Arc<OpenScopes>,
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
            // The scopes before it were examined when it was opened.
            next = if this.has_resting { this.before(py) } else { None };
        }
        let counts = Counts::open(heap, name, limit, around);
        let extent = Extent::new(resumable);
        Ok(Account { counts, extent, has_resting, before: Mutex::new(before) })
    }

    /// Identity of the scope's heap.
    pub(crate) fn heap(&self) -> &Arc<OpenScopes> {
        &self.counts.heap
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
    pub(crate) fn live(&self) -> u64 {
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
        self.counts.is_closed()
    }

    /// Number of buffers that the scope would free now, some of which may have ended.
    #[getter]
    fn owned(&self) -> usize {
        lock(&self.counts.owned).len()
    }

    /// Takes out the objects whose memory the scope frees and that live, the oldest first.
    fn take_owned(&self, py: Python<'_>) -> Vec<Py<PyAny>> {
        let owned = std::mem::take(&mut *lock(&self.counts.owned));
        owned.into_objects(py)
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
    /// Makes the scope free the memory of an object at its end.
    pub(crate) fn adopt(&self, py: Python<'_>, holder: Holder) {
        lock(&self.owned).insert(py, holder);
    }
}

/// Returns the innermost scope that governs the caller: of a heap, or of any.
pub(crate) fn innermost(
    py: Python<'_>,
    heap: Option<&Arc<OpenScopes>>,
) -> PyResult<Option<Py<Account>>> {
    let mut found: Option<Py<Account>> = None;
    let mut next = latest(py)?;
    while let Some(account) = next {
        let this = account.get();
        next = this.before(py);
        let is_wanted = heap.is_none_or(|heap| this.counts.is_of(heap));
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

/// Returns the latest scope of the calling context. It may rest or be closed.
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
