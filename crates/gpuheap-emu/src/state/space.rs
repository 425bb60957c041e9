//! The device's address space, with the allocation at each address.

use std::collections::{BTreeMap, BTreeSet};

use gpuheap_driver::CUmemLocation;

use crate::state::slots::GRANULE;
use crate::state::stream::OpRef;

/// First address of device memory. It is below 2^47, as on real devices. Linux places no program,
/// library, heap or stack at addresses of device memory, so a device address is never a host
/// address.
pub(crate) const FIRST: u64 = 0x2000_0000_0000;
/// End of device memory's addresses.
pub(crate) const END: u64 = 0x5000_0000_0000;

/// Context index of allocations without a context: reserved addresses, and pool memory that
/// outlived its context.
pub(crate) const NO_CONTEXT: u32 = u32::MAX;

/// Returns whether an address is in the range of device memory.
pub(crate) fn is_device_address(address: u64) -> bool {
    (FIRST..END).contains(&address)
}

/// All allocations that the device sees, keyed by first address: device memory, reserved addresses,
/// and the pinned, registered and managed memory of the host.
pub(crate) struct Space {
    allocations: BTreeMap<u64, Allocation>,
    /// Start of a free range, `cursor..limit`. Addresses are assigned upwards, and from [`FIRST`]
    /// again after [`END`]. So freed addresses stay free for long, and the checks find a use after
    /// free.
    cursor: u64,
    limit: u64,
    /// Granules that small allocations share. No other allocation is placed in these granules.
    granules: BTreeSet<u64>,
}

pub(crate) struct Allocation {
    /// Bytes requested; for reserved addresses, bytes reserved.
    pub(crate) bytes: u64,
    pub(crate) kind: Kind,
    /// Index of the allocation's context, or [`NO_CONTEXT`].
    pub(crate) context: u32,
    pub(crate) device: usize,
    /// Identifier that no other allocation ever has.
    pub(crate) id: u64,
    /// Queued free of the allocation. The stream has not reached that free yet.
    pub(crate) freed: Option<OpRef>,
    pub(crate) sync_memops: bool,
    /// Advice given for managed memory.
    pub(crate) advice: Option<Box<Advice>>,
}

/// Advice given for managed memory. Locations are devices, the host, or NUMA nodes of the host.
#[derive(Default)]
pub(crate) struct Advice {
    pub(crate) read_mostly: bool,
    pub(crate) preferred: Option<CUmemLocation>,
    pub(crate) last_prefetch: Option<CUmemLocation>,
    /// Devices that access the memory; -1 for the host.
    pub(crate) accessed_by: Vec<i32>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// A small plain allocation that takes `taken` bytes of a shared granule.
    Small { taken: u64 },
    /// A plain allocation in granules that no other allocation shares.
    Large { charged: u64 },
    /// An allocation from a stream-ordered pool. It takes `taken` bytes at `place` in the pool.
    /// Unless it is device memory, it takes `mapped` bytes of host memory.
    Pool { pool: usize, place: u64, taken: u64, mapped: usize },
    /// Managed host memory that the emulator owns. It takes `charged` bytes of the device's memory;
    /// 0 if its pages migrate, because the emulator leaves these pages on the host.
    Managed { mapped: usize, charged: u64 },
    /// Pinned host memory that the emulator owns.
    Pinned { mapped: usize, flags: u32 },
    /// Registered host memory. The caller owns it.
    Registered { flags: u32 },
    /// Addresses without memory.
    Reserved,
}

impl Kind {
    /// Returns whether the address is a host address of this process.
    pub(crate) fn is_host(self) -> bool {
        match self {
            Kind::Managed { .. } | Kind::Pinned { .. } | Kind::Registered { .. } => true,
            Kind::Pool { mapped, .. } => mapped != 0,
            Kind::Small { .. } | Kind::Large { .. } | Kind::Reserved => false,
        }
    }

    /// Returns the name of the kind in findings.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Small { .. } | Kind::Large { .. } => "device memory",
            Kind::Pool { .. } => "pool memory",
            Kind::Managed { .. } => "managed memory",
            Kind::Pinned { .. } => "pinned memory",
            Kind::Registered { .. } => "registered memory",
            Kind::Reserved => "reserved addresses",
        }
    }
}

impl Space {
    pub(crate) fn new() -> Space {
        Space { allocations: BTreeMap::new(), cursor: FIRST, limit: END, granules: BTreeSet::new() }
    }

    /// Returns the start of a free range that the caller must take with `insert`; `None` if no gap
    /// is large enough.
    pub(crate) fn find_gap(&mut self, bytes: u64, align: u64) -> Option<u64> {
        let mut wrapped = false;
        loop {
            let start = self.cursor.checked_next_multiple_of(align)?;
            let end = start.checked_add(bytes)?;
            if end <= self.limit {
                self.cursor = end;
                match self.granules.range(start.saturating_sub(GRANULE - 1)..end).next_back() {
                    Some(granule) => self.cursor = granule + GRANULE,
                    None => return Some(start),
                }
                continue;
            }
            match self.allocations.range(self.cursor..END).next() {
                Some((&base, allocation)) if self.limit >= base => {
                    self.cursor = base + allocation.bytes;
                    self.limit = self.next_base(self.cursor);
                }
                Some((&base, _)) => self.limit = base,
                None if self.limit < END => self.limit = END,
                None if !wrapped => {
                    wrapped = true;
                    self.cursor = FIRST;
                    self.limit = self.next_base(FIRST);
                }
                None => return None,
            }
        }
    }

    /// Returns whether a range of device memory addresses overlaps no allocation.
    pub(crate) fn is_free(&self, base: u64, bytes: u64) -> bool {
        let Some(end) = base.checked_add(bytes) else { return false };
        base >= FIRST
            && end <= END
            && self
                .allocations
                .range(..end)
                .next_back()
                .is_none_or(|(at, found)| at + found.bytes <= base)
            && self.granules.range(base.saturating_sub(GRANULE - 1)..end).next().is_none()
    }

    /// Reserves addresses for a granule that small allocations share. Returns the first address.
    pub(crate) fn add_granule(&mut self) -> Option<u64> {
        let granule = self.find_gap(GRANULE, GRANULE)?;
        self.granules.insert(granule);
        Some(granule)
    }

    pub(crate) fn remove_granule(&mut self, granule: u64) {
        self.granules.remove(&granule);
    }

    pub(crate) fn insert(&mut self, base: u64, allocation: Allocation) {
        if (self.cursor..self.limit).contains(&base) {
            // The caller placed an allocation in the free range `cursor..limit`. The range becomes
            // empty, so `find_gap` searches for another one.
            self.limit = self.cursor;
        }
        self.allocations.insert(base, allocation);
    }

    pub(crate) fn remove(&mut self, base: u64) -> Option<Allocation> {
        self.allocations.remove(&base)
    }

    pub(crate) fn get(&self, base: u64) -> Option<&Allocation> {
        self.allocations.get(&base)
    }

    pub(crate) fn get_mut(&mut self, base: u64) -> Option<&mut Allocation> {
        self.allocations.get_mut(&base)
    }

    /// Returns the allocation that contains an address, with its base.
    pub(crate) fn find(&self, address: u64) -> Option<(u64, &Allocation)> {
        let (&base, allocation) = self.allocations.range(..=address).next_back()?;
        // An allocation of zero bytes contains its first address.
        (address - base < allocation.bytes.max(1)).then_some((base, allocation))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Allocation> {
        self.allocations.values_mut()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &Allocation)> {
        self.allocations.iter().map(|(&base, allocation)| (base, allocation))
    }

    /// Extends `base..end` on both sides to the neighbouring allocations, but not beyond `outer`.
    pub(crate) fn gap_around(&self, base: u64, end: u64, outer: (u64, u64)) -> (u64, u64) {
        let before = self.allocations.range(..base).next_back();
        let after = self.allocations.range(end..).next();
        (
            before.map_or(outer.0, |(at, found)| outer.0.max((at + found.bytes).min(base))),
            after.map_or(outer.1, |(at, _)| outer.1.min(*at)),
        )
    }

    fn next_base(&self, from: u64) -> u64 {
        self.allocations.range(from..END).next().map_or(END, |(&base, _)| base)
    }
}
