//! The addresses that the device sees, and what is behind each.

use std::collections::{BTreeMap, BTreeSet};

use crate::state::stream::OpRef;
use crate::state::units::GRANULE;

/// The first address of device memory. Below 2^47 as on real devices, and where Linux puts neither
/// programs nor their libraries, heap or stacks, so that a device address is no host address.
pub(crate) const FIRST: u64 = 0x2000_0000_0000;
/// The end of device memory's addresses.
pub(crate) const END: u64 = 0x5000_0000_0000;

/// Context of what has none: reserved addresses, and pool memory that outlived its own.
pub(crate) const NO_CONTEXT: u32 = u32::MAX;

/// Returns whether an address is one that device memory may have.
pub(crate) fn is_device_address(address: u64) -> bool {
    (FIRST..END).contains(&address)
}

/// All allocations that the device sees, by their first address: device memory, reserved
/// addresses, and the pinned, registered and managed memory of the host.
pub(crate) struct Space {
    allocations: BTreeMap<u64, Allocation>,
    /// The addresses in `cursor..limit` are free. Addresses are given out upwards and from the
    /// start again at the end, so that freed ones stay free for long and a use after free is found.
    cursor: u64,
    limit: u64,
    /// Granules that small allocations share: nothing else goes between those.
    granules: BTreeSet<u64>,
}

pub(crate) struct Allocation {
    /// Bytes asked for; of reserved addresses those reserved.
    pub(crate) bytes: u64,
    pub(crate) kind: Kind,
    /// The place of its context, or [`NO_CONTEXT`].
    pub(crate) context: u32,
    pub(crate) device: usize,
    /// A number that no other allocation ever has.
    pub(crate) id: u64,
    /// The free of it that its stream has not got to yet.
    pub(crate) freed: Option<OpRef>,
    pub(crate) sync_memops: bool,
    /// Advice given for managed memory.
    pub(crate) advice: Option<Box<Advice>>,
}

/// Advice given for managed memory. Locations are devices, or -1 for the host.
#[derive(Default)]
pub(crate) struct Advice {
    pub(crate) read_mostly: bool,
    pub(crate) preferred: Option<i32>,
    pub(crate) last_prefetch: Option<i32>,
    pub(crate) accessed_by: Vec<i32>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// A small plain allocation in a shared granule, and how much it takes there.
    Small { taken: u64 },
    /// A plain allocation of its own granules.
    Large { charged: u64 },
    /// From a stream-ordered pool: its place there, and how much it takes.
    Pool { pool: usize, place: u64, taken: u64 },
    /// Host memory of the emulator's.
    Managed { mapped: usize },
    /// Host memory of the emulator's, counted as pinned.
    Pinned { mapped: usize, flags: u32 },
    /// Host memory of the caller's.
    Registered { flags: u32 },
    /// Addresses only.
    Reserved,
}

impl Kind {
    /// Returns whether the address is one of this process.
    pub(crate) fn is_host(self) -> bool {
        matches!(self, Kind::Managed { .. } | Kind::Pinned { .. } | Kind::Registered { .. })
    }

    /// Returns its name in findings.
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

    /// Free addresses, or `None` when there is no such gap. They are taken by the `insert` that
    /// has to follow.
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

    /// Returns whether nothing is at these addresses of device memory.
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

    /// Addresses for a granule that small allocations are to share.
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
            // An address that the caller asked for, out of turn.
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

    /// The allocation that an address is inside of, with its base.
    pub(crate) fn find(&self, address: u64) -> Option<(u64, &Allocation)> {
        let (&base, allocation) = self.allocations.range(..=address).next_back()?;
        // An allocation of no bytes has its first address.
        (address - base < allocation.bytes.max(1)).then_some((base, allocation))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Allocation> {
        self.allocations.values_mut()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &Allocation)> {
        self.allocations.iter().map(|(&base, allocation)| (base, allocation))
    }

    /// The addresses around `base..end` that belong to no allocation, cut to `outer`.
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
