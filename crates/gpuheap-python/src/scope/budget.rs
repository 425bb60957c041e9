//! Charges requests to scopes, and refuses requests beyond a scope's limit.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::counts::{Charge, Counts, OpenScopes, lock};
use super::owned::Holder;
use super::{Account, innermost};
use crate::collector::collect;
use crate::failure;
use crate::frames::innermost_frame;

/// Hooks: modules that request memory for another library. No scope frees this memory, because
/// objects of the library use it.
const HOOKS: [&str; 6] = [
    "gpuheap.cuda_core",
    "gpuheap.cupy",
    "gpuheap.numba",
    "gpuheap.pycuda",
    "gpuheap.rmm",
    "gpuheap.torch",
];

/// Charges `bytes` to the open scopes of a heap in which the caller runs. Returns the charge, and
/// the innermost of these scopes. The end of that scope frees the memory. Both are `None` if no
/// scope is open.
pub(crate) fn charge(
    py: Python<'_>,
    heap: &Arc<OpenScopes>,
    bytes: u64,
) -> PyResult<(Option<Charge>, Option<Py<Account>>)> {
    let Some(account) = governing(py, heap)? else { return Ok((None, None)) };
    let counts = &account.get().counts;
    let charge = match Charge::new(counts, bytes) {
        Ok(charge) => charge,
        Err(_) => {
            // Frees uncollected garbage before the refusal.
            py.import("gc")?.call_method0("collect")?;
            Charge::new(counts, bytes).map_err(|number| exceeded(py, counts, number, bytes))?
        }
    };
    Ok((Some(charge), Some(account)))
}

/// Adds a new object to a scope. The end of the scope frees the object's memory. Does nothing if a
/// hook, such as `gpuheap.cupy`, requested the memory for another library.
pub(crate) fn adopt(
    py: Python<'_>,
    scope: Option<Py<Account>>,
    holder: impl FnOnce() -> PyResult<Holder>,
) -> PyResult<()> {
    match scope {
        Some(account) if !is_for_hook(py)? => account.get().counts.adopt(py, holder()?),
        _ => {}
    }
    Ok(())
}

/// The budgets that apply to the caller's new arrays. An array checks the budgets before it
/// allocates memory.
#[derive(Clone)]
pub(crate) struct Budget {
    counts: Arc<Counts>,
    /// Number of the scope that refused an array, and the size of the array in bytes.
    refused: Arc<Mutex<Option<(u32, u64)>>>,
}

impl Budget {
    /// Returns the caller's budgets. `None` if no scope that governs the caller has a limit.
    pub(crate) fn for_caller(py: Python<'_>, heap: &Arc<OpenScopes>) -> PyResult<Option<Budget>> {
        let Some(account) = governing(py, heap)? else { return Ok(None) };
        let counts = account.get().counts.clone();
        let is_limited = counts.of_heap().any(|scope| scope.limit_now().is_some());
        Ok(is_limited.then(|| Budget { counts, refused: Arc::default() }))
    }

    /// Returns whether the budgets allow an array of `bytes`. Before a refusal, runs Python's
    /// collector if the thread may take the interpreter's lock.
    pub(crate) fn admits(&self, bytes: u64) -> bool {
        let full = || self.counts.of_heap().find(|scope| !scope.allows(bytes));
        if full().is_none() {
            return true;
        }
        collect();
        match full() {
            None => true,
            Some(scope) => {
                *lock(&self.refused) = Some((scope.number, bytes));
                false
            }
        }
    }

    /// Returns the error for the array that was refused last, if any.
    pub(crate) fn refusal(&self, py: Python<'_>) -> Option<PyErr> {
        let (number, bytes) = lock(&self.refused).take()?;
        Some(exceeded(py, &self.counts, number, bytes))
    }

    /// Returns name, free bytes and limit of the innermost scope whose limit refuses `bytes`.
    /// Returns `None` if all scopes' limits allow the request.
    pub(crate) fn shortage(&self, bytes: u64) -> Option<(&str, u64, u64)> {
        let full = self.counts.of_heap().find(|scope| !scope.allows(bytes))?;
        let limit = full.limit_now()?;
        Some((&full.name, limit.saturating_sub(full.live.load(Ordering::Relaxed)), limit))
    }
}

/// Returns the innermost open scope of a heap that governs the caller: the caller runs inside it.
fn governing(py: Python<'_>, heap: &Arc<OpenScopes>) -> PyResult<Option<Py<Account>>> {
    if heap.exist() { innermost(py, Some(heap)) } else { Ok(None) }
}

/// Returns whether the innermost Python frame belongs to a hook, a module that requests memory for
/// another library. Returns `false` if C code made the request without any Python frame.
fn is_for_hook(py: Python<'_>) -> PyResult<bool> {
    let Some(frame) = innermost_frame(py) else { return Ok(false) };
    let globals = frame.getattr(intern!(py, "f_globals"))?;
    let Ok(name) = globals.get_item(intern!(py, "__name__")) else { return Ok(false) };
    Ok(name.extract::<&str>().is_ok_and(|name| HOOKS.contains(&name)))
}

/// Makes the error for a request beyond the budget of scope `number`.
fn exceeded(py: Python<'_>, counts: &Counts, number: u32, bytes: u64) -> PyErr {
    let scope = counts.of_heap().find(|scope| scope.number == number).unwrap_or(counts);
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
