//! Virtual memory management: physical memory and its mappings.

use std::collections::BTreeMap;

use gpuheap_driver::{CU_MEM_ACCESS_FLAGS_PROT_NONE, CUmemAllocationProp};

use crate::handles::{HandleKind, Handles};
use crate::state::ranges::Conflict;

/// First physical address of memory from `cuMemCreate`, above all virtual addresses.
const FIRST_PHYSICAL: u64 = 1 << 60;

pub(crate) struct Vmm {
    pub(crate) physical: Handles<Physical>,
    /// Mappings, keyed by first address.
    pub(crate) mappings: BTreeMap<u64, Mapping>,
    next_physical: u64,
}

pub(crate) struct Physical {
    pub(crate) bytes: u64,
    /// Physical address of the first byte.
    pub(crate) base: u64,
    pub(crate) device: usize,
    pub(crate) properties: Properties,
    /// Number of references through handles. Each `cuMemRetainAllocationHandle` adds one.
    pub(crate) references: u64,
    pub(crate) mappings: u64,
}

/// Properties given to `cuMemCreate`.
#[derive(Clone, Copy)]
pub(crate) struct Properties(CUmemAllocationProp);

// SAFETY: the pointer in the properties is only returned to callers, never followed.
unsafe impl Send for Properties {}

pub(crate) struct Mapping {
    pub(crate) bytes: u64,
    /// Index of the physical memory that is mapped.
    pub(crate) physical: u32,
    pub(crate) base: u64,
    pub(crate) device: usize,
    /// Access flags of each device, indexed by ordinal.
    pub(crate) access: Vec<i32>,
    /// Last work of each stream on these addresses, for the checks.
    pub(crate) uses: Vec<Conflict>,
}

impl Properties {
    pub(crate) fn new(properties: CUmemAllocationProp) -> Properties {
        Properties(properties)
    }

    pub(crate) fn get(&self) -> CUmemAllocationProp {
        self.0
    }
}

impl Mapping {
    /// Records the last work of a stream. Drops the stream's earlier work, because the last work is
    /// ordered after the earlier work.
    pub(crate) fn add_conflict(&mut self, work: Conflict) {
        let lane = work.before.epoch.lane;
        match self.uses.iter_mut().find(|known| known.before.epoch.lane == lane) {
            Some(known) => *known = work,
            None => self.uses.push(work),
        }
    }

    pub(crate) fn access_of(&self, device: usize) -> i32 {
        self.access.get(device).copied().unwrap_or(CU_MEM_ACCESS_FLAGS_PROT_NONE)
    }
}

impl Vmm {
    pub(crate) fn new() -> Vmm {
        Vmm {
            physical: Handles::new(HandleKind::Physical),
            mappings: BTreeMap::new(),
            next_physical: FIRST_PHYSICAL,
        }
    }

    /// Returns the first address for new physical memory. Physical addresses are never reused.
    pub(crate) fn take_physical(&mut self, bytes: u64) -> u64 {
        let base = self.next_physical;
        self.next_physical += bytes;
        base
    }

    /// Returns the mapping that contains an address, with the mapping's first address.
    pub(crate) fn find(&self, address: u64) -> Option<(u64, &Mapping)> {
        let (&start, mapping) = self.mappings.range(..=address).next_back()?;
        (address - start < mapping.bytes).then_some((start, mapping))
    }

    pub(crate) fn find_mut(&mut self, address: u64) -> Option<&mut Mapping> {
        let (&start, mapping) = self.mappings.range_mut(..=address).next_back()?;
        (address - start < mapping.bytes).then_some(mapping)
    }

    /// Returns the mappings that together cover exactly `first..end`. Returns `None` if `first` or
    /// `end` cuts through a mapping. Gaps between mappings are allowed if `holes` is true.
    pub(crate) fn whole(&self, first: u64, end: u64, holes: bool) -> Option<Vec<u64>> {
        let mut at = first;
        let mut found = Vec::new();
        if self.find(first).is_some_and(|(start, _)| start != first) {
            return None;
        }
        for (&start, mapping) in self.mappings.range(first..end) {
            if start != at && !holes {
                return None;
            }
            at = start + mapping.bytes;
            found.push(start);
        }
        (at <= end && (holes || at == end)).then_some(found)
    }
}
