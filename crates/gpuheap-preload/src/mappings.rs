//! References to physical memory of the virtual memory management.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

/// References to physical memory.
#[derive(Debug, Default)]
pub(crate) struct Mappings {
    /// References to each handle: by the program, and by mapped ranges.
    pub(crate) references: FxHashMap<u64, usize>,
    /// Handle and bytes of each mapped range, by address.
    pub(crate) ranges: BTreeMap<u64, (u64, u64)>,
}

impl Mappings {
    /// Adds a reference. Returns `false` for a handle that was not recorded.
    pub(crate) fn add(&mut self, handle: u64) -> bool {
        self.references.get_mut(&handle).map(|count| *count += 1).is_some()
    }

    /// Returns `true` if one reference is left.
    pub(crate) fn is_last(&self, handle: u64) -> bool {
        self.references.get(&handle) == Some(&1)
    }

    /// Removes a reference.
    pub(crate) fn remove(&mut self, handle: u64) {
        if let Some(count) = self.references.get_mut(&handle) {
            *count -= 1;
            if *count == 0 {
                self.references.remove(&handle);
            }
        }
    }
}
