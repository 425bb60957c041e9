//! Finds out whether the memory of Python objects is freed at the end of a scope, is kept beyond
//! the scope, or is leaked.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::array::Array;
use crate::buffer::Buffer;
use crate::heap::Heap;
use crate::host::HostBuffer;
use crate::scope::{Account, Counts, Holder, innermost, lock};

/// Adds an object to a scope. When the scope ends, it frees the object's memory.
#[pyfunction]
pub(crate) fn _scope_adopt(account: &Account, object: &Bound<'_, PyAny>) -> PyResult<()> {
    account.counts.adopt(object.py(), make_holder(object)?);
    Ok(())
}

/// Keeps an object beyond a scope, and beyond the open scopes inside it. `place` is the address and
/// size of the object's device memory. If one of these scopes would have freed the memory, the
/// scope around the given scope frees it instead.
#[pyfunction]
pub(crate) fn _scope_keep(
    account: &Account,
    object: &Bound<'_, PyAny>,
    place: Option<(u64, u64)>,
) -> PyResult<()> {
    let py = object.py();
    let mut scopes = vec![account.counts.clone()];
    if let Some(inner) = innermost(py, Some(account.heap()))? {
        let inside: Vec<_> = inner.get().counts.up_to(account.counts.number).collect();
        if inside.last().is_some_and(|last| Arc::ptr_eq(last, &account.counts)) {
            scopes = inside;
        }
    }
    // The scope that frees the object's memory lists the object under this number. If the object
    // was allocated before `account` was opened, no scope in `scopes` lists it.
    let number = make_holder(object)?.number;
    let mut was_owned = false;
    for scope in &scopes {
        was_owned |= lock(&scope.owned).remove(number);
    }
    if was_owned && let Some(around) = account.counts.around() {
        around.adopt(py, make_holder(object)?);
    }
    let Some((address, bytes)) = place else { return Ok(()) };
    let charged = charged_to(object);
    for scope in &scopes {
        let is_charged = match &charged {
            Charged::To(inner) => inner.is_inside(scope.number),
            Charged::Nothing => false,
            Charged::Unknown => true,
        };
        if is_charged {
            // Makes the holder before taking the lock. Making it may run the collector, and code
            // that the collector runs may need the lock.
            let holder = make_holder(object)?;
            lock(&scope.kept).push(py, holder, address, bytes);
        }
    }
    Ok(())
}

/// Returns the bytes of `heaps` that were requested in a scope and outlive it. Does not count
/// memory that was kept with `Scope.keep`, or that open inner scopes may still free.
#[pyfunction]
pub(crate) fn _scope_stayed(
    py: Python<'_>,
    heaps: Vec<PyRef<'_, Heap>>,
    account: &Account,
) -> PyResult<u64> {
    let places = lock(&account.counts.kept).places(py);
    let kept = kept_bytes(py, &heaps, account, &places)?;
    Ok(account.live().saturating_sub(kept).saturating_sub(account.counts.live_inside()))
}

/// Returns records of the memory that outlives a scope of a heap, as dictionaries. Leaves out
/// memory that the program kept with `Scope.keep`.
#[pyfunction]
pub(crate) fn _scope_leaked<'py>(
    py: Python<'py>,
    heap: &Heap,
    account: &Account,
) -> PyResult<Vec<Bound<'py, PyDict>>> {
    let places = lock(&account.counts.kept).places(py);
    let is_leaked = |address, bytes| !has_kept(&places, address, bytes);
    heap.owner.lines.records(py, Some(account.counts.number), is_leaked)
}

fn make_holder(object: &Bound<'_, PyAny>) -> PyResult<Holder> {
    if let Ok(array) = object.cast::<Array>() {
        return array.get().holder(object.py());
    }
    if let Ok(buffer) = object.cast::<Buffer>() {
        return Buffer::holder(buffer);
    }
    match object.cast::<HostBuffer>() {
        Ok(buffer) => HostBuffer::holder(buffer),
        Err(_) => Holder::weak(object, |_| false),
    }
}

enum Charged {
    /// The innermost charged scope. Its outer scopes of the same heap are charged too.
    To(Arc<Counts>),
    Nothing,
    /// Unknown, because the object belongs to another library.
    Unknown,
}

fn charged_to(object: &Bound<'_, PyAny>) -> Charged {
    let scope = if let Ok(array) = object.cast::<Array>() {
        array.get().scope()
    } else if let Ok(buffer) = object.cast::<Buffer>() {
        buffer.get().scope()
    } else {
        return Charged::Unknown;
    };
    scope.map_or(Charged::Nothing, Charged::To)
}

/// Returns whether an allocation contains kept memory. `places` has the addresses and sizes of all
/// kept memory, sorted by address.
fn has_kept(places: &[(u64, u64)], address: u64, bytes: u64) -> bool {
    let next = places.partition_point(|(start, _)| *start < address);
    places.get(next).is_some_and(|(start, _)| *start < address + bytes.max(1))
}

/// Returns the total bytes of the kept memory at `places`. Counts overlapping bytes once. If the
/// heaps record lines, they know each allocation. An allocation that contains kept memory then
/// counts as a whole.
fn kept_bytes(
    py: Python<'_>,
    heaps: &[PyRef<'_, Heap>],
    account: &Account,
    places: &[(u64, u64)],
) -> PyResult<u64> {
    let (mut total, mut end) = (0, 0);
    if heaps.iter().all(|heap| heap.owner.tracks()) && !places.is_empty() {
        for heap in heaps {
            heap.owner.lines.records(py, Some(account.counts.number), |address, bytes| {
                total += if has_kept(places, address, bytes) { bytes } else { 0 };
                false
            })?;
        }
        return Ok(total);
    }
    for &(address, bytes) in places {
        let stop = address.saturating_add(bytes);
        total += stop.saturating_sub(address.max(end));
        end = end.max(stop);
    }
    Ok(total)
}
