//! A device: its capacity and who uses it.

use std::collections::VecDeque;

use crate::Profile;
use crate::state::slots::Slots;

/// User of device memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Owner {
    Context,
    Plain,
    Pool,
    Vmm,
}

pub(crate) struct Device {
    pub(crate) profile: Profile,
    used: [u64; 4],
    high_water: u64,
    /// Freed memory that cannot be had yet: from which call on, and how much.
    late: VecDeque<(u64, u64)>,
    late_bytes: u64,
    /// The granules that small plain allocations share.
    pub(crate) small: Slots,
    pub(crate) primary: Primary,
    pub(crate) default_pool: usize,
    pub(crate) current_pool: usize,
}

/// Memory in use on a device, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// Taken by contexts.
    pub context: u64,
    /// Taken by `cuMemAlloc` and its kin, in whole granules.
    pub plain: u64,
    /// Reserved by pools.
    pub pools: u64,
    /// Taken by `cuMemCreate`.
    pub vmm: u64,
    /// Freed and not available again yet (see [`Profile::late_release_calls`](crate::Profile)).
    pub late: u64,
    /// Free.
    pub free: u64,
    /// The most that was in use at once since the emulator was made.
    pub high_water: u64,
}

/// The context that the whole process shares.
#[derive(Default)]
pub(crate) struct Primary {
    /// Its handle since it was first made; it stays the same: measured.
    pub(crate) handle: Option<usize>,
    pub(crate) active: bool,
    /// References; a reset does not take them away: measured.
    pub(crate) retained: u64,
    pub(crate) flags: u32,
}

impl Device {
    pub(crate) fn new(profile: Profile, default_pool: usize) -> Device {
        Device {
            profile,
            used: [0; 4],
            high_water: 0,
            late: VecDeque::new(),
            late_bytes: 0,
            small: Slots::default(),
            primary: Primary::default(),
            default_pool,
            current_pool: default_pool,
        }
    }

    /// Takes memory, or says that there is not enough.
    pub(crate) fn charge(&mut self, owner: Owner, bytes: u64, limit: u64) -> bool {
        let total = self.used_bytes();
        if bytes > self.capacity(limit).saturating_sub(total) {
            return false;
        }
        self.used[owner as usize] += bytes;
        self.high_water = self.high_water.max(total + bytes);
        true
    }

    /// Gives memory back.
    pub(crate) fn release(&mut self, owner: Owner, bytes: u64, calls: u64) {
        debug_assert!(self.used[owner as usize] >= bytes, "{owner:?} gives back what it has not");
        self.used[owner as usize] = self.used[owner as usize].saturating_sub(bytes);
        if self.profile.late_release_calls != 0 && bytes != 0 {
            let due = calls.saturating_add(self.profile.late_release_calls);
            self.late.push_back((due, bytes));
            self.late_bytes += bytes;
        }
    }

    /// Lets what was freed long enough ago be had again.
    pub(crate) fn settle(&mut self, calls: u64) {
        while let Some(&(due, bytes)) = self.late.front()
            && due <= calls
        {
            self.late.pop_front();
            self.late_bytes -= bytes;
        }
    }

    pub(crate) fn free_bytes(&self, limit: u64) -> u64 {
        self.capacity(limit).saturating_sub(self.used_bytes())
    }

    pub(crate) fn usage(&self, limit: u64) -> Usage {
        Usage {
            context: self.used[Owner::Context as usize],
            plain: self.used[Owner::Plain as usize],
            pools: self.used[Owner::Pool as usize],
            vmm: self.used[Owner::Vmm as usize],
            late: self.late_bytes,
            free: self.free_bytes(limit),
            high_water: self.high_water,
        }
    }

    fn capacity(&self, limit: u64) -> u64 {
        self.profile.memory_bytes.min(limit)
    }

    fn used_bytes(&self) -> u64 {
        self.used.iter().sum::<u64>() + self.late_bytes
    }
}
