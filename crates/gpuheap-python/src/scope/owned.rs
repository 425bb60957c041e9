//! Lists the objects whose memory a scope frees at its end, and the objects whose memory is kept
//! beyond the scope.

use pyo3::prelude::*;
use pyo3::types::{PyWeakrefMethods, PyWeakrefReference};
use rustc_hash::FxHashMap;

/// Minimum number of entries at which the entries of ended objects are dropped.
const PRUNE: usize = 64;

/// A reference to a Python object that has device memory. The reference keeps no memory alive.
pub(crate) struct Holder {
    object: Reference,
    /// Number that identifies the object. Arrays that share memory have the same number.
    pub(crate) number: usize,
    /// Returns whether the memory of the object was freed.
    is_freed: fn(&Bound<'_, PyAny>) -> bool,
}

enum Reference {
    Weak(Py<PyWeakrefReference>),
    Strong(Py<PyAny>),
}

impl Holder {
    /// Makes a holder with a weak reference to an object.
    pub(crate) fn weak(
        object: &Bound<'_, PyAny>,
        is_freed: fn(&Bound<'_, PyAny>) -> bool,
    ) -> PyResult<Holder> {
        let number = object.as_ptr() as usize;
        let object = Reference::Weak(PyWeakrefReference::new(object)?.unbind());
        Ok(Holder { object, number, is_freed })
    }

    /// Makes a holder with a strong reference to `object`. The object must refer to its memory only
    /// weakly, because the holder would otherwise keep the memory alive.
    pub(crate) fn strong(
        object: Py<PyAny>,
        number: usize,
        is_freed: fn(&Bound<'_, PyAny>) -> bool,
    ) -> Holder {
        Holder { object: Reference::Strong(object), number, is_freed }
    }

    /// Returns the object if it is alive and its memory was not freed.
    fn live<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        let object = match &self.object {
            Reference::Weak(reference) => reference.bind(py).upgrade()?,
            Reference::Strong(object) => object.bind(py).clone(),
        };
        Some(object).filter(|object| !(self.is_freed)(object))
    }
}

/// Live objects whose memory a scope frees at its end.
#[derive(Default)]
pub(crate) struct Owned {
    /// Holder of each object, keyed by the holder's `number`. The first part of a value is a
    /// sequence number: later holders have larger ones.
    holders: FxHashMap<usize, (u64, Holder)>,
    added: u64,
    /// If there are this many holders, the next insertion removes the holders of ended objects.
    prune_at: usize,
}

impl Owned {
    pub(super) fn len(&self) -> usize {
        self.holders.len()
    }

    pub(crate) fn insert(&mut self, py: Python<'_>, holder: Holder) {
        if self.holders.len() >= self.prune_at.max(PRUNE) {
            self.holders.retain(|_, (_, holder)| holder.live(py).is_some());
            self.prune_at = 2 * self.holders.len();
        }
        self.added += 1;
        self.holders.insert(holder.number, (self.added, holder));
    }

    pub(crate) fn remove(&mut self, number: usize) -> bool {
        self.holders.remove(&number).is_some()
    }

    /// Returns the live objects, the oldest first.
    pub(super) fn into_objects(self, py: Python<'_>) -> Vec<Py<PyAny>> {
        let mut holders: Vec<_> = self.holders.into_values().collect();
        holders.sort_by_key(|(added, _)| *added);
        holders.iter().filter_map(|(_, holder)| holder.live(py).map(Bound::unbind)).collect()
    }
}

/// Memory that the program keeps beyond a scope. An entry has the holder, the address and the size.
#[derive(Default)]
pub(crate) struct Kept(Vec<(Holder, u64, u64)>);

impl Kept {
    /// Adds an entry. When the number of entries has doubled, removes entries of freed memory.
    pub(crate) fn push(&mut self, py: Python<'_>, holder: Holder, address: u64, bytes: u64) {
        let Kept(all) = self;
        if all.len() >= PRUNE && all.len() == all.capacity() {
            all.retain(|(holder, ..)| holder.live(py).is_some());
            all.reserve(all.len().max(PRUNE));
        }
        all.push((holder, address, bytes));
    }

    /// Returns address and bytes of the live memory, sorted by address.
    pub(crate) fn places(&self, py: Python<'_>) -> Vec<(u64, u64)> {
        let live = self.0.iter().filter(|(holder, ..)| holder.live(py).is_some());
        let mut places: Vec<_> = live.map(|(_, address, bytes)| (*address, *bytes)).collect();
        places.sort_unstable();
        places
    }
}
