//! Implements Python's scopes of a heap. A scope counts the live bytes that were requested inside
//! it, may have a budget, and frees buffers at its end.
//!
//! `gpuheap/_scopes.py` opens and closes scopes. Its context variable contains the latest scope of
//! the calling context. A scope governs only its [extent]. It does not apply to other threads.
//! While the generator or coroutine that opened the scope is suspended, the scope is inactive
//! ("resting"). On a heap without open scopes, each allocation costs one load of an atomic number.
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
pub(crate) use extent::thread_serial;
pub(crate) use owned::Holder;

/// A scope of one heap: its byte counts, and the code that it governs. The public class
/// `gpuheap.Scope` refers to it.
#[pyclass(frozen, module = "gpuheap._gpuheap", name = "_Account")]
pub(crate) struct Account {
    pub(crate) counts: Arc<Counts>,
    extent: Extent,
    /// `true` if the Python context had a resting scope (the scope of a suspended generator or
    /// coroutine) when this scope was opened. The generator may be resumed inside this scope.
    has_resting: bool,
    /// The scope that the Python context had when this scope was opened.
    before: Mutex<Option<Py<Account>>>,
}

impl Account {
    /// Opens a scope of a heap in the calling context. `resumable` contains weak references to the
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
            // If no earlier scope was resting (suspended) when `this` was opened, the search ends.
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

    /// Returns the scope that was the latest of the Python context when this scope was opened.
    fn before(&self, py: Python<'_>) -> Option<Py<Account>> {
        lock(&self.before).as_ref().map(|before| before.clone_ref(py))
    }
}

#[pymethods]
impl Account {
    /// Ends the scope. Later requests belong to the outer scope. A second call does nothing.
    fn close(&self) {
        self.counts.close();
    }

    /// Number of the scope. `_records()` uses the same number.
    #[getter]
    fn number(&self) -> u32 {
        self.counts.number
    }

    /// Limit in bytes.
    #[getter]
    fn limit(&self) -> Option<u64> {
        self.counts.limit
    }

    /// Live bytes that were requested inside the scope.
    #[getter]
    pub(crate) fn live(&self) -> u64 {
        self.counts.live.load(Ordering::Relaxed)
    }

    /// Peak of the live bytes that were requested inside the scope.
    #[getter]
    fn peak(&self) -> u64 {
        self.counts.peak.load(Ordering::Relaxed)
    }

    /// The latest open scope among those that the Python context had before this scope was opened.
    #[getter(before)]
    fn open_before(&self, py: Python<'_>) -> Option<Py<Account>> {
        skip_closed(py, self.before(py))
    }

    /// `True` after the scope ended.
    #[getter]
    fn closed(&self) -> bool {
        self.counts.is_closed()
    }

    /// Number of buffers that the scope frees at its end. The program may have freed some already.
    #[getter]
    fn owned(&self) -> usize {
        lock(&self.counts.owned).len()
    }

    /// Removes and returns the live objects whose memory the scope frees, the oldest first.
    fn take_owned(&self, py: Python<'_>) -> Vec<Py<PyAny>> {
        let owned = std::mem::take(&mut *lock(&self.counts.owned));
        owned.into_objects(py)
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        // Drops the earlier scopes in a loop, because a recursion over deeply nested scopes could
        // overflow the stack.
        let mut next = lock(&self.before).take();
        while let Some(account) = next {
            // SAFETY: the object is alive, and the interpreter drops objects with its lock held.
            let is_last = unsafe { ffi::Py_REFCNT(account.as_ptr()) } == 1;
            next = if is_last { lock(&account.get().before).take() } else { None };
        }
    }
}

impl Counts {
    /// Adds an object to the scope. When the scope ends, it frees the object's memory.
    pub(crate) fn adopt(&self, py: Python<'_>, holder: Holder) {
        lock(&self.owned).insert(py, holder);
    }
}

/// Returns the innermost scope that governs the caller. If `heap` is given, considers only scopes
/// of that heap.
pub(crate) fn innermost(
    py: Python<'_>,
    heap: Option<&Arc<OpenScopes>>,
) -> PyResult<Option<Py<Account>>> {
    let mut found: Option<Py<Account>> = None;
    let mut next = latest(py)?;
    while let Some(account) = next {
        let this = account.get();
        next = this.before(py);
        let is_wanted = heap.is_none_or(|heap| this.counts.belongs_to(heap));
        if !is_wanted || this.closed() || !this.extent.is_running(py)? {
            continue;
        }
        // A scope that was opened later is usually the inner scope. But if a generator opened
        // `this` and was resumed inside the later scope, `this` is the inner scope.
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

/// Returns the Python context's latest scope. The scope may be closed or resting (suspended).
fn latest(py: Python<'_>) -> PyResult<Option<Py<Account>>> {
    static CURRENT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let current = CURRENT.get_or_try_init(py, || {
        py.import("gpuheap._scopes")?.getattr("current").map(Bound::unbind)
    })?;
    let found = current.bind(py).call_method0(intern!(py, "get"))?;
    Ok(found.extract::<Option<Py<Account>>>()?)
}

/// Returns the latest open scope, searched from `from` to earlier scopes. Drops the closed scopes
/// between the found scope and the next earlier open one.
fn skip_closed(py: Python<'_>, from: Option<Py<Account>>) -> Option<Py<Account>> {
    let open = latest_open(py, from)?;
    let older = latest_open(py, open.get().before(py));
    let forgotten = std::mem::replace(&mut *lock(&open.get().before), older);
    drop(forgotten);
    Some(open)
}

fn latest_open(py: Python<'_>, from: Option<Py<Account>>) -> Option<Py<Account>> {
    let mut next = from?;
    while next.get().closed() {
        next = next.get().before(py)?;
    }
    Some(next)
}
