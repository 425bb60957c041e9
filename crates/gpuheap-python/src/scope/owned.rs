//! Buffers that the end of a scope frees, and memory that outlives it on purpose.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyWeakrefMethods, PyWeakrefReference};
use rustc_hash::FxHashMap;

use super::{Counts, lock};
use crate::array::{Array, SharedMemory};
use crate::buffer::Buffer;
use crate::host::HostBuffer;

/// Number of entries at which a look for those that ended begins.
const PRUNE: usize = 64;

/// An object that keeps memory, held weakly.
pub(super) enum Holder {
    /// The memory of an array, which parts of the array may keep alive.
    Array(SharedMemory),
    Object(Py<PyWeakrefReference>),
}

impl Holder {
    pub(super) fn new(object: &Bound<'_, PyAny>) -> PyResult<Holder> {
        if let Ok(array) = object.cast::<Array>() {
            return Ok(Holder::Array(array.get().shared_memory()));
        }
        Ok(Holder::Object(PyWeakrefReference::new(object)?.unbind()))
    }

    /// Returns whether the memory may be live: it was not freed, and its holder lives.
    fn is_live(&self, py: Python<'_>) -> bool {
        match self {
            Holder::Array(memory) => memory.is_live(),
            Holder::Object(reference) => {
                let Some(object) = reference.bind(py).upgrade() else { return false };
                if let Ok(buffer) = object.cast::<Buffer>() {
                    return !buffer.get().is_freed();
                }
                object.cast::<HostBuffer>().map_or(true, |buffer| !buffer.get().is_freed())
            }
        }
    }
}

/// Returns a number of an object, or of an array's memory, that no other has while it lives.
pub(super) fn number_of(object: &Bound<'_, PyAny>) -> usize {
    match object.cast::<Array>() {
        Ok(array) => array.get().shared_memory().id(),
        Err(_) => object.as_ptr() as usize,
    }
}

/// The scopes that an object's memory is charged to.
pub(super) enum Charged {
    /// The innermost scope.
    To(Arc<Counts>),
    Nothing,
    /// Unknown: the object is another library's.
    Unknown,
}

/// Returns the scopes that an object's memory is charged to.
pub(super) fn scope_of(object: &Bound<'_, PyAny>) -> Charged {
    let scope = if let Ok(array) = object.cast::<Array>() {
        array.get().shared_memory().scope()
    } else if let Ok(buffer) = object.cast::<Buffer>() {
        buffer.get().scope()
    } else {
        return Charged::Unknown;
    };
    scope.map_or(Charged::Nothing, Charged::To)
}

/// Buffers that a scope frees at its end, as long as they live.
#[derive(Default)]
pub(super) struct Owned {
    /// Holders with the order of their coming, by number.
    holders: FxHashMap<usize, (u64, Holder)>,
    added: u64,
    /// Number of holders at which those that ended are looked for.
    prune_at: usize,
}

impl Owned {
    pub(super) fn len(&self) -> usize {
        self.holders.len()
    }

    pub(super) fn insert(&mut self, py: Python<'_>, number: usize, holder: Holder) {
        if self.holders.len() >= self.prune_at.max(PRUNE) {
            self.holders.retain(|_, (_, holder)| holder.is_live(py));
            self.prune_at = 2 * self.holders.len();
        }
        self.added += 1;
        self.holders.insert(number, (self.added, holder));
    }

    pub(super) fn remove(&mut self, number: usize) -> bool {
        self.holders.remove(&number).is_some()
    }

    /// Returns the buffers that live, the oldest first, and of an array its memory.
    pub(super) fn into_objects(self, py: Python<'_>) -> PyResult<Vec<Py<PyAny>>> {
        let mut holders: Vec<_> = self.holders.into_values().collect();
        holders.sort_by_key(|(added, _)| *added);
        let objects = holders.into_iter().filter_map(|(_, holder)| match holder {
            Holder::Array(memory) if !memory.is_live() => None,
            Holder::Array(memory) => Some(Py::new(py, memory).map(Py::into_any)),
            Holder::Object(reference) => Some(Ok(reference.bind(py).upgrade()?.unbind())),
        });
        objects.collect()
    }
}

/// Memory that outlives a scope on purpose.
pub(super) struct Kept {
    holder: Holder,
    address: u64,
    bytes: u64,
}

impl Kept {
    pub(super) fn new(holder: &Bound<'_, PyAny>, address: u64, bytes: u64) -> PyResult<Kept> {
        Ok(Kept { holder: Holder::new(holder)?, address, bytes })
    }
}

/// Adds memory that is kept. Memory that was freed meanwhile is forgotten each time that there is
/// twice as much.
pub(super) fn push_kept(py: Python<'_>, all: &mut Vec<Kept>, kept: Kept) {
    if all.len() >= PRUNE && all.len() == all.capacity() {
        all.retain(|kept| kept.holder.is_live(py));
        all.reserve(all.len().max(PRUNE));
    }
    all.push(kept);
}

/// Returns address and bytes of the memory that is kept and lives, by address.
fn live_kept(py: Python<'_>, scope: &Counts) -> Vec<(u64, u64)> {
    let kept = lock(&scope.kept);
    let live = kept.iter().filter(|kept| kept.holder.is_live(py));
    let mut places: Vec<_> = live.map(|kept| (kept.address, kept.bytes)).collect();
    drop(kept);
    places.sort_unstable();
    places
}

/// Returns whether one of some places, which are sorted, begins inside an allocation.
fn has_kept(places: &[(u64, u64)], address: u64, bytes: u64) -> bool {
    let next = places.partition_point(|(start, _)| *start < address);
    places.get(next).is_some_and(|(start, _)| *start < address + bytes.max(1))
}

/// Returns the bytes of the memory that was kept and lives, each of them once.
pub(super) fn kept_bytes(py: Python<'_>, scope: &Arc<Counts>) -> PyResult<u64> {
    let places = live_kept(py, scope);
    if places.is_empty() {
        return Ok(0);
    }
    if scope.owner.tracks() {
        let mut total = 0;
        scope.owner.lines.each_inside(py, scope.number, |address, bytes| {
            total += if has_kept(&places, address, bytes) { bytes } else { 0 };
            false
        })?;
        return Ok(total);
    }
    let (mut total, mut end) = (0, 0);
    for (address, bytes) in places {
        let stop = address.saturating_add(bytes);
        total += stop.saturating_sub(address.max(end));
        end = end.max(stop);
    }
    Ok(total)
}

/// Returns records of the memory that outlives a scope, but not on purpose.
pub(super) fn leaked<'py>(
    py: Python<'py>,
    scope: &Arc<Counts>,
) -> PyResult<Vec<Bound<'py, PyDict>>> {
    let places = live_kept(py, scope);
    let is_leaked = |address, bytes| !has_kept(&places, address, bytes);
    scope.owner.lines.each_inside(py, scope.number, is_leaked)
}
