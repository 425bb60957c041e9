//! Counts references to physical memory, by the program and by the ranges to which it is mapped.

use std::collections::BTreeMap;
use std::ops::Range;

use rustc_hash::FxHashMap;

/// References to physical memory.
#[derive(Debug, Default)]
pub(crate) struct Mappings {
    /// Number of references that the program and mapped ranges have to each handle.
    references: FxHashMap<u64, usize>,
    /// Handle of each mapped range, by address.
    ranges: BTreeMap<u64, u64>,
}

/// Reference that was removed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reference {
    pub(crate) handle: u64,
    /// Address of the mapped range that had the reference; `None` if the program's handle had it.
    range: Option<u64>,
    /// `true` if no reference is left.
    pub(crate) is_last: bool,
}

impl Mappings {
    /// Adds memory with the program's reference.
    pub(crate) fn create(&mut self, handle: u64) {
        self.references.insert(handle, 1);
    }

    /// Adds a reference. Returns `false` for a handle that was not recorded.
    pub(crate) fn add(&mut self, handle: u64) -> bool {
        self.references.get_mut(&handle).map(|count| *count += 1).is_some()
    }

    /// Records that the range mapped at `address` uses one of the references to `handle`.
    pub(crate) fn map(&mut self, address: u64, handle: u64) {
        self.ranges.insert(address, handle);
    }

    /// Removes a reference. Returns `None` for a handle that was not recorded.
    pub(crate) fn remove(&mut self, handle: u64) -> Option<Reference> {
        let count = self.references.get_mut(&handle)?;
        *count = count.saturating_sub(1);
        let is_last = *count == 0;
        if is_last {
            self.references.remove(&handle);
        }
        Some(Reference { handle, range: None, is_last })
    }

    /// Removes ranges that begin at these addresses. Returns their references to physical memory.
    pub(crate) fn unmap(&mut self, addresses: Range<u64>) -> Vec<Reference> {
        let begins: Vec<_> = self.ranges.range(addresses).map(|(address, _)| *address).collect();
        let removed = begins.into_iter().filter_map(|address| {
            let handle = self.ranges.remove(&address)?;
            Some(Reference { range: Some(address), ..self.remove(handle)? })
        });
        removed.collect()
    }

    /// Adds a removed reference again.
    pub(crate) fn restore(&mut self, removed: &Reference) {
        *self.references.entry(removed.handle).or_default() += 1;
        if let Some(address) = removed.range {
            self.ranges.insert(address, removed.handle);
        }
    }
}
