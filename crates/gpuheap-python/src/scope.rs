//! Scopes of Python as a heap sees them: bytes that were requested inside and are live, and a
//! budget.
//!
//! `gpuheap/_scopes.py` opens and closes them. A context variable there has the innermost open
//! scope of the calling context, which is a thread's or a task's. A heap without open scopes pays
//! one load of an atomic number for each allocation.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;

use crate::failure;
use crate::owner::Owner;

/// Number of the last scope that was opened; 0 is no scope.
static LAST: AtomicU32 = AtomicU32::new(0);

/// Modules that request memory for another library, whose objects no scope frees.
const HOOKS: [&str; 6] = [
    "gpuheap.cuda_core",
    "gpuheap.cupy",
    "gpuheap.numba",
    "gpuheap.pycuda",
    "gpuheap.rmm",
    "gpuheap.torch",
];

/// A scope of one heap. `gpuheap.scope` is its public face.
#[pyclass(frozen, module = "gpuheap._gpuheap", name = "_Account")]
pub(crate) struct Account {
    counts: Arc<Counts>,
    /// Buffers that the scope frees: a set that holds them weakly.
    buffers: Py<PyAny>,
    /// The scope around it.
    outer: Mutex<Option<Py<Account>>>,
}

/// Figures of a scope. Memory that outlives the scope stays charged to it and to those around it.
struct Counts {
    owner: Arc<Owner>,
    number: u32,
    name: String,
    limit: Option<u64>,
    live: AtomicU64,
    peak: AtomicU64,
    is_closed: AtomicBool,
    outer: Option<Arc<Counts>>,
}

/// Bytes that are charged to a scope and those around it, until this is dropped.
pub(crate) struct Charge {
    counts: Arc<Counts>,
    bytes: u64,
}

/// A charge with the scope that it belongs to, while an allocation is made.
pub(crate) struct Request {
    pub(crate) charge: Charge,
    account: Py<Account>,
}

impl Account {
    /// Opens a scope of a heap inside `outer`, with a set for the buffers that it frees.
    pub(crate) fn open(
        py: Python<'_>,
        owner: &Arc<Owner>,
        name: String,
        limit: Option<u64>,
        outer: Option<Py<Account>>,
        buffers: Py<PyAny>,
    ) -> Account {
        let around = outer.as_ref().map(|outer| outer.bind(py).get().counts.clone());
        let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        owner.open_scopes.fetch_add(1, Ordering::Relaxed);
        let counts = Counts {
            owner: owner.clone(),
            number,
            name,
            limit,
            live: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            is_closed: AtomicBool::new(false),
            outer: around,
        };
        Account { counts: Arc::new(counts), buffers, outer: Mutex::new(outer) }
    }

    /// Locks the scope around. No Python code may run under the lock.
    fn lock_outer(&self) -> MutexGuard<'_, Option<Py<Account>>> {
        self.outer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns `true` for a scope of the heap.
    pub(crate) fn is_of(&self, owner: &Arc<Owner>) -> bool {
        self.counts.is_of(owner)
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

    /// Buffers that the scope frees.
    #[getter]
    fn buffers(&self, py: Python<'_>) -> Py<PyAny> {
        self.buffers.clone_ref(py)
    }

    /// The scope around it.
    #[getter]
    fn outer(&self, py: Python<'_>) -> Option<Py<Account>> {
        self.lock_outer().as_ref().map(|outer| outer.clone_ref(py))
    }

    /// `True` once the scope ended.
    #[getter]
    fn closed(&self) -> bool {
        self.counts.is_closed.load(Ordering::Relaxed)
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        // Scopes end one after the other. Each inside the one before would take a stack as deep as
        // the scopes are nested.
        let mut next = self.lock_outer().take();
        while let Some(account) = next {
            // SAFETY: the object is alive, and the interpreter ends objects with its lock held.
            let is_last = unsafe { ffi::Py_REFCNT(account.as_ptr()) } == 1;
            next = if is_last { account.get().lock_outer().take() } else { None };
        }
    }
}

impl Counts {
    fn is_of(&self, owner: &Arc<Owner>) -> bool {
        Arc::ptr_eq(&self.owner, owner)
    }

    fn close(&self) {
        if !self.is_closed.swap(true, Ordering::Relaxed) {
            self.owner.open_scopes.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Adds `bytes`, unless that exceeds the budget of an open scope.
    fn add(&self, bytes: u64) -> bool {
        let limit = self.limit.filter(|_| !self.is_closed.load(Ordering::Relaxed));
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
        // One after the other, as `Account`.
        let mut next = self.outer.take();
        while let Some(mut counts) = next.and_then(Arc::into_inner) {
            next = counts.outer.take();
        }
    }
}

impl Charge {
    /// Charges `counts` and all scopes of its heap around it; the scope whose budget is exceeded
    /// otherwise.
    fn new(counts: &Arc<Counts>, bytes: u64) -> Result<Charge, Arc<Counts>> {
        let mut charged = Vec::new();
        let mut next = Some(counts.clone());
        while let Some(scope) = next {
            next = scope.outer.clone();
            if !scope.is_of(&counts.owner) {
                continue;
            }
            if !scope.add(bytes) {
                charged.iter().for_each(|scope: &Arc<Counts>| {
                    scope.live.fetch_sub(bytes, Ordering::Relaxed);
                });
                return Err(scope);
            }
            charged.push(scope);
        }
        Ok(Charge { counts: counts.clone(), bytes })
    }

    /// Number of the innermost scope that is charged.
    pub(crate) fn number(&self) -> u32 {
        self.counts.number
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let mut next = Some(&self.counts);
        while let Some(scope) = next {
            if scope.is_of(&self.counts.owner) {
                scope.live.fetch_sub(self.bytes, Ordering::Relaxed);
            }
            next = scope.outer.as_ref();
        }
    }
}

impl Request {
    /// Charges `bytes` to the calling context's scopes of a heap. `None` if no scope is open.
    pub(crate) fn charged(
        py: Python<'_>,
        owner: &Arc<Owner>,
        bytes: u64,
    ) -> PyResult<Option<Request>> {
        if owner.open_scopes.load(Ordering::Relaxed) == 0 {
            return Ok(None);
        }
        let Some(account) = innermost(py, owner)? else { return Ok(None) };
        let counts = &account.bind(py).get().counts;
        let charge = match Charge::new(counts, bytes) {
            Ok(charge) => charge,
            Err(_) => {
                // Garbage that waits for the collector is no reason to refuse.
                py.import("gc")?.call_method0("collect")?;
                Charge::new(counts, bytes).map_err(|scope| exceeded(py, &scope, bytes))?
            }
        };
        Ok(Some(Request { charge, account }))
    }

    /// Makes the scope free `buffer` at its end, unless it was requested for another library.
    pub(crate) fn adopt(account: &Py<Account>, buffer: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = buffer.py();
        let frame = py.import("sys")?.call_method0("_getframe")?;
        let module = frame.getattr("f_globals")?.call_method1("get", ("__name__",))?;
        if module.extract::<String>().is_ok_and(|name| HOOKS.contains(&name.as_str())) {
            return Ok(());
        }
        account.bind(py).get().buffers.bind(py).call_method1("add", (buffer,))?;
        Ok(())
    }

    /// Splits the request in what the memory keeps and the scope that frees it.
    pub(crate) fn split(request: Option<Request>) -> (Option<Charge>, Option<Py<Account>>) {
        request.map(|request| (request.charge, request.account)).unzip()
    }
}

/// Returns the innermost open scope of `owner` in the calling context.
fn innermost(py: Python<'_>, owner: &Arc<Owner>) -> PyResult<Option<Py<Account>>> {
    static CURRENT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let current = CURRENT.get_or_try_init(py, || {
        py.import("gpuheap._scopes")?.getattr("current").map(Bound::unbind)
    })?;
    let found = current.bind(py).call_method0(intern!(py, "get"))?;
    let mut next = found.extract::<Option<Py<Account>>>()?;
    while let Some(account) = next {
        let this = account.bind(py).get();
        if this.counts.is_of(owner) && !this.closed() {
            return Ok(Some(account));
        }
        next = this.outer(py);
    }
    Ok(None)
}

/// Makes the error of a request beyond a scope's budget.
fn exceeded(py: Python<'_>, scope: &Counts, bytes: u64) -> PyErr {
    let make = || -> PyResult<PyErr> {
        let live = scope.live.load(Ordering::Relaxed);
        let limit = scope.limit.unwrap_or(u64::MAX);
        let figures = PyDict::new(py);
        figures.set_item("cause", "scope")?;
        figures.set_item("scope", &scope.name)?;
        figures.set_item("requested", bytes)?;
        figures.set_item("live", live)?;
        figures.set_item("limit", limit)?;
        figures.set_item("short_by", live.saturating_add(bytes).saturating_sub(limit))?;
        failure::scope_exceeded(py, figures)
    };
    make().unwrap_or_else(|failed| failed)
}
