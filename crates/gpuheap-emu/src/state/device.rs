//! Devices: capacity and memory in use.

use std::collections::VecDeque;
use std::sync::Arc;

use gpuheap_driver::CUdevice;

use crate::state::slots::Slots;
use crate::{Account, Profile};

/// User of device memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Owner {
    Context,
    Plain,
    Pool,
    Vmm,
    Managed,
}

pub(crate) struct Device {
    pub(crate) profile: Profile,
    /// Index of the device in the machine. The device's UUID and PCI address contain this index.
    pub(crate) number: CUdevice,
    used: [u64; 5],
    high_water: u64,
    managed: u64,
    managed_high_water: u64,
    demand_high_water: u64,
    pub(crate) largest_refused: u64,
    /// Freed memory that cannot be allocated yet. Each entry has the call at which the memory
    /// becomes available, and the bytes.
    late: VecDeque<(u64, u64)>,
    late_bytes: u64,
    /// Account that several processes share, and this device's index in it.
    account: Option<(Arc<Account>, usize)>,
    /// Granules that small plain allocations share.
    pub(crate) small: Slots,
    pub(crate) primary: Primary,
    pub(crate) default_pool: usize,
    pub(crate) current_pool: usize,
}

/// Memory in use on a device, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// Memory of contexts.
    pub context: u64,
    /// Memory of `cuMemAlloc` and its variants, in whole granules.
    pub plain: u64,
    /// Memory reserved by pools.
    pub pools: u64,
    /// Memory of `cuMemCreate`.
    pub vmm: u64,
    /// Managed memory that the device holds because the device lacks concurrent access (see
    /// [`Profile::concurrent_managed_access`](crate::Profile)).
    pub managed: u64,
    /// Memory that was freed but is not available yet (see
    /// [`Profile::late_release_calls`](crate::Profile)).
    pub late: u64,
    /// Free memory.
    pub free: u64,
    /// Peak of the memory in use since the emulator was made. With a shared account, the peak
    /// covers all processes. It is then updated only when this process takes memory.
    pub high_water: u64,
    /// Peak of managed memory that was allocated while this device was current, and whose pages
    /// migrate. Such memory does not count as memory of the device.
    pub managed_high_water: u64,
    /// Peak of the sum of memory in use and managed memory. If this peak exceeds the device's
    /// memory, managed memory is oversubscribed.
    pub demand_high_water: u64,
    /// Largest request that exceeded the device's free memory, in bytes.
    pub largest_refused: u64,
}

impl Usage {
    /// Returns all memory except the free memory.
    pub fn in_use(&self) -> u64 {
        let Usage { context, plain, pools, vmm, managed, late, .. } = *self;
        context + plain + pools + vmm + managed + late
    }
}

/// Primary context, shared by the whole process.
#[derive(Default)]
pub(crate) struct Primary {
    /// Handle; `None` until the context is first made. If the context is made again, it has the
    /// same handle (measured).
    pub(crate) handle: Option<usize>,
    pub(crate) active: bool,
    /// Number of references. A reset does not change it (measured).
    pub(crate) retained: u64,
    pub(crate) flags: u32,
}

impl Device {
    pub(crate) fn new(
        profile: Profile,
        number: usize,
        default_pool: usize,
        account: Option<(Arc<Account>, usize)>,
    ) -> Device {
        Device {
            profile,
            number: number as CUdevice,
            used: [0; 5],
            high_water: 0,
            managed: 0,
            managed_high_water: 0,
            demand_high_water: 0,
            largest_refused: 0,
            late: VecDeque::new(),
            late_bytes: 0,
            account,
            small: Slots::default(),
            primary: Primary::default(),
            default_pool,
            current_pool: default_pool,
        }
    }

    /// Takes memory. Returns false if the device has too little memory.
    pub(crate) fn charge(&mut self, owner: Owner, bytes: u64, limit: u64) -> bool {
        let total = self.used_bytes();
        if bytes > self.capacity(limit).saturating_sub(total) {
            return false;
        }
        if let Some((account, device)) = &self.account
            && !account.charge(*device, bytes, self.capacity(limit))
        {
            return false;
        }
        self.used[owner as usize] += bytes;
        let in_use = self.used_by_all(total + bytes);
        self.high_water = self.high_water.max(in_use);
        self.demand_high_water = self.demand_high_water.max(in_use.saturating_add(self.managed));
        true
    }

    /// Counts managed memory that was allocated.
    pub(crate) fn add_managed(&mut self, bytes: u64) {
        self.managed = self.managed.saturating_add(bytes);
        self.managed_high_water = self.managed_high_water.max(self.managed);
        self.demand_high_water = self
            .demand_high_water
            .max(self.used_by_all(self.used_bytes()).saturating_add(self.managed));
    }

    /// Counts managed memory that was freed.
    pub(crate) fn remove_managed(&mut self, bytes: u64) {
        self.managed = self.managed.saturating_sub(bytes);
    }

    /// Returns a figure that grows when a peak of this device grows.
    pub(crate) fn peak_mark(&self) -> u64 {
        self.high_water.saturating_add(self.demand_high_water)
    }

    pub(crate) fn release(&mut self, owner: Owner, bytes: u64, calls: u64) {
        debug_assert!(self.used[owner as usize] >= bytes, "{owner:?} gives back what it has not");
        self.used[owner as usize] = self.used[owner as usize].saturating_sub(bytes);
        if self.profile.late_release_calls != 0 && bytes != 0 {
            let due = calls.saturating_add(self.profile.late_release_calls);
            self.late.push_back((due, bytes));
            self.late_bytes += bytes;
        } else {
            self.release_shared(bytes);
        }
    }

    /// Makes freed memory available once enough calls have been made since its free.
    pub(crate) fn release_late(&mut self, calls: u64) {
        while let Some(&(due, bytes)) = self.late.front()
            && due <= calls
        {
            self.late.pop_front();
            self.late_bytes -= bytes;
            self.release_shared(bytes);
        }
    }

    fn release_shared(&self, bytes: u64) {
        if let Some((account, device)) = &self.account {
            account.release(*device, bytes);
        }
    }

    pub(crate) fn free_bytes(&self, limit: u64) -> u64 {
        self.capacity(limit).saturating_sub(self.used_by_all(self.used_bytes()))
    }

    pub(crate) fn usage(&self, limit: u64) -> Usage {
        Usage {
            context: self.used[Owner::Context as usize],
            plain: self.used[Owner::Plain as usize],
            pools: self.used[Owner::Pool as usize],
            vmm: self.used[Owner::Vmm as usize],
            managed: self.used[Owner::Managed as usize],
            late: self.late_bytes,
            free: self.free_bytes(limit),
            high_water: self.high_water,
            managed_high_water: self.managed_high_water,
            demand_high_water: self.demand_high_water,
            largest_refused: self.largest_refused,
        }
    }

    fn capacity(&self, limit: u64) -> u64 {
        self.profile.memory_bytes.min(limit)
    }

    /// Returns the memory in use by all processes that share the account, at least `own`.
    fn used_by_all(&self, own: u64) -> u64 {
        self.account.as_ref().map_or(own, |(account, device)| account.used(*device).max(own))
    }

    fn used_bytes(&self) -> u64 {
        self.used.iter().sum::<u64>() + self.late_bytes
    }
}

/// Subtracts the device's memory from the account, because emulators of other processes share it.
impl Drop for Device {
    fn drop(&mut self) {
        self.release_shared(self.used_bytes());
    }
}
