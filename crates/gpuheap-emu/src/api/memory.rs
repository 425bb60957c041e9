//! Plain and pitched device memory, and the device's free memory.

use super::prelude::*;
use std::sync::atomic::Ordering;

use crate::state::device::{Device, Owner};
use crate::state::host;
use crate::state::physical::PAGE;
use crate::state::slots::GRANULE;
use crate::state::space::{Allocation, Kind, NO_CONTEXT};

/// Sizes of small allocations are rounded up to a multiple of this number, in bytes.
const ALIGN: u64 = 512;
/// Largest allocation that shares a granule, in bytes.
const SMALL: u64 = 1 << 20;
/// Alignment of the rows of pitched memory, in bytes.
const PITCH: u64 = 512;

impl Call<'_> {
    pub(crate) fn cuMemGetInfo_v2(&mut self, (free, total): args::cuMemGetInfo_v2) -> Outcome {
        let context = self.current()?;
        let (limit, calls) = (self.state.memory_limit(), self.state.calls.total);
        let device = self.device_of(context);
        let device = &mut self.state.devices[device];
        device.release_late(calls);
        let capacity = device.profile.memory_bytes;
        let promised =
            device.free_bytes(limit).saturating_add(device.profile.free_overstated_bytes);
        free.write_if_wanted(promised.min(capacity) as usize)?;
        total.write_if_wanted(capacity as usize)
    }

    pub(crate) fn cuMemAlloc_v2(&mut self, (pointer, bytes): args::cuMemAlloc_v2) -> Outcome {
        let context = self.current()?;
        pointer.require()?;
        fail_if(bytes == 0, INVALID_VALUE)?;
        self.note_request(self.device_of(context), bytes as u64, pointer.address());
        let address = self.allocate_plain(context, bytes as u64)?;
        pointer.write(address)
    }

    pub(crate) fn cuMemAllocPitch_v2(
        &mut self,
        (pointer, pitch, width_bytes, height, element_bytes): args::cuMemAllocPitch_v2,
    ) -> Outcome {
        let context = self.current()?;
        pointer.require()?;
        pitch.require()?;
        fail_if(
            width_bytes == 0 || height == 0 || !matches!(element_bytes, 4 | 8 | 16),
            INVALID_VALUE,
        )?;
        let row = (width_bytes as u64).checked_next_multiple_of(PITCH);
        let bytes = row.and_then(|row| row.checked_mul(height as u64));
        self.note_request(self.device_of(context), bytes.unwrap_or(u64::MAX), pointer.address());
        let (Some(row), Some(bytes)) = (row, bytes) else {
            return Err(CUresult::ERROR_OUT_OF_MEMORY);
        };
        let address = self.allocate_plain(context, bytes)?;
        pitch.write(row as usize)?;
        pointer.write(address)
    }

    /// Frees plain device memory. The pointer determines the context, so a current context is not
    /// needed (measured).
    pub(crate) fn cuMemFree_v2(&mut self, pointer: CUdeviceptr) -> Outcome {
        self.initialised()?;
        if pointer == 0 {
            return Ok(());
        }
        match self.state.space.get(pointer).map(|found| (found.kind, found.freed)) {
            Some((
                Kind::Small { .. } | Kind::Large { .. } | Kind::Pool { .. } | Kind::Managed { .. },
                None,
            )) => self.free_after_work(pointer),
            _ => {
                self.find_bad_free(pointer);
                Err(INVALID_VALUE)
            }
        }
    }

    pub(crate) fn cuMemGetAddressRange_v2(
        &mut self,
        (base, bytes, pointer): args::cuMemGetAddressRange_v2,
    ) -> Outcome {
        let current = self.current()?;
        if base.is_null() && bytes.is_null() {
            return Ok(());
        }
        let (start, length) = self.range_of(pointer).ok_or(CUresult::ERROR_NOT_FOUND)?;
        // The call finds plain memory of another device only with peer access (measured). For pool
        // memory, the pool must grant access. Memory that `cuMemMap` mapped needs no access.
        let is_mapping = self.state.vmm.find(pointer).is_some();
        fail_if(!is_mapping && !self.reaches(current, pointer), CUresult::ERROR_NOT_FOUND)?;
        base.write_if_wanted(start)?;
        bytes.write_if_wanted(length as usize)
    }

    /// Returns the allocation or mapping that contains an address.
    pub(crate) fn range_of(&self, address: u64) -> Option<(u64, u64)> {
        match self.state.space.find(address) {
            Some((_, found)) if found.kind == Kind::Reserved => {
                let (start, mapping) = self.state.vmm.find(address)?;
                Some((start, mapping.bytes))
            }
            Some((start, found)) if found.freed.is_none() => Some((start, found.bytes)),
            _ => None,
        }
    }

    fn allocate_plain(&mut self, context: u32, bytes: u64) -> Outcome<u64> {
        let out_of_memory = CUresult::ERROR_OUT_OF_MEMORY;
        let device = self.device_of(context);
        if bytes <= SMALL {
            let taken = bytes.next_multiple_of(ALIGN);
            if self.state.devices[device].small.needs_granule(taken) {
                fail_if(!self.charge(device, Owner::Plain, GRANULE), out_of_memory)?;
                let Some(granule) = self.state.space.add_granule() else {
                    self.release(device, Owner::Plain, GRANULE);
                    return Err(out_of_memory);
                };
                self.state.devices[device].small.add_granule(granule);
            }
            let address = self.state.devices[device].small.take(taken).ok_or(out_of_memory)?;
            self.insert(address, bytes, Kind::Small { taken }, context, device);
            return Ok(address);
        }
        let charged = bytes.checked_next_multiple_of(GRANULE).ok_or(out_of_memory)?;
        fail_if(!self.charge(device, Owner::Plain, charged), out_of_memory)?;
        let Some(address) = self.state.space.find_gap(charged, GRANULE) else {
            self.release(device, Owner::Plain, charged);
            return Err(out_of_memory);
        };
        let kind = Kind::Large { charged };
        self.insert(address, bytes, kind, context, device);
        Ok(address)
    }

    /// Inserts a new allocation at its address.
    pub(crate) fn insert(
        &mut self,
        address: u64,
        bytes: u64,
        kind: Kind,
        context: u32,
        device: usize,
    ) {
        let id = self.state.fresh_id();
        let allocation = Allocation {
            bytes,
            kind,
            context,
            device,
            id,
            freed: None,
            sync_memops: false,
            advice: None,
        };
        self.state.space.insert(address, allocation);
        match self.managed_bytes(kind) {
            0 => {}
            managed => {
                self.state.devices[device].add_managed(managed);
                self.note_peak();
            }
        }
        self.note_allocated(address, bytes);
    }

    /// Returns the bytes of an allocation that count as managed memory.
    fn managed_bytes(&self, kind: Kind) -> u64 {
        match kind {
            // Charged memory is left out: it is already in the device's memory in use.
            Kind::Managed { mapped, charged: 0 } => mapped as u64,
            Kind::Pool { pool, mapped, .. } if self.is_pool_managed(pool) => mapped as u64,
            _ => 0,
        }
    }

    /// Updates the counts for an allocation that was removed.
    pub(crate) fn note_removed(&mut self, gone: &Allocation) {
        let managed = self.managed_bytes(gone.kind);
        self.state.devices[gone.device].remove_managed(managed);
    }

    fn note_peak(&mut self) {
        let mark = self.state.devices.iter().map(Device::peak_mark).fold(0, u64::saturating_add);
        self.shared.peak_mark.store(mark, Ordering::Relaxed);
    }

    /// Takes device memory. If the device has too little, first returns idle pool memory to the
    /// device.
    pub(crate) fn charge(&mut self, device: usize, owner: Owner, bytes: u64) -> bool {
        let (limit, calls) = (self.state.memory_limit(), self.state.calls.total);
        let found = &mut self.state.devices[device];
        found.release_late(calls);
        if found.charge(owner, bytes, limit) {
            self.note_peak();
            return true;
        }
        self.shrink_pools(device, 0);
        let found = &mut self.state.devices[device];
        let charged = found.charge(owner, bytes, limit);
        match charged {
            true => self.note_peak(),
            false => {
                found.largest_refused = found.largest_refused.max(bytes);
                let free = found.free_bytes(limit);
                self.short_of.get_or_insert((device, bytes, free));
            }
        }
        charged
    }

    pub(crate) fn release(&mut self, device: usize, owner: Owner, bytes: u64) {
        let calls = self.state.calls.total;
        self.state.devices[device].release(owner, bytes, calls);
    }

    /// Waits for the work that may use an allocation, then frees the allocation.
    pub(crate) fn free_after_work(&mut self, address: u64) -> Outcome {
        let Some(found) = self.state.space.get(address) else { return Ok(()) };
        let (context, on_host, mut device) = (found.context, found.kind.is_host(), found.device);
        self.alive(context)?;
        if on_host {
            // Any device may use host memory, and the free unmaps it. So waits for every device.
            for device in 0..self.state.devices.len() {
                self.wait_for_device(device);
            }
        } else {
            if context != NO_CONTEXT {
                device = self.device_of(context);
            }
            self.wait_for_device(device);
        }
        // During the wait, another thread may have freed the allocation.
        if self.state.space.get(address).is_some_and(|found| found.freed.is_none()) {
            self.free_now(address);
        }
        Ok(())
    }

    fn wait_for_device(&mut self, device: usize) {
        if self.state.pending == 0 && self.state.checker.is_none() {
            return;
        }
        let contexts: Vec<u32> = self
            .state
            .contexts
            .iter()
            .filter(|(_, context)| context.device == device)
            .map(|(index, _)| index)
            .collect();
        for context in contexts {
            self.complete_context(context);
        }
    }

    /// Frees an allocation at once. Its last use must be done. It may be pinned or managed memory.
    pub(crate) fn free_now(&mut self, address: u64) {
        let Some(gone) = self.state.space.remove(address) else { return };
        self.note_removed(&gone);
        self.forget_range(address, &gone);
        match gone.kind {
            Kind::Small { taken } => {
                if let Some(granule) = self.state.devices[gone.device].small.give(address, taken) {
                    self.state.space.remove_granule(granule);
                    self.release(gone.device, Owner::Plain, GRANULE);
                }
                self.drop_pages(address, gone.bytes);
            }
            Kind::Large { charged } => {
                self.release(gone.device, Owner::Plain, charged);
                self.drop_pages(address, gone.bytes);
            }
            Kind::Pool { pool, place, taken, mapped } => {
                self.drop_pool_memory(address, gone.bytes, mapped);
                if let Some(found) = self.state.pools.get_mut(pool) {
                    found.arena.give(place, taken, None);
                    found.live -= 1;
                }
                self.pool_emptied(pool);
            }
            Kind::Managed { mapped, charged } => {
                host::unmap(address, mapped);
                self.release(gone.device, Owner::Managed, charged);
            }
            Kind::Pinned { mapped, .. } => {
                host::unmap(address, mapped);
                self.state.pinned_bytes -= mapped as u64;
            }
            Kind::Registered { .. } => self.state.pinned_bytes -= gone.bytes,
            Kind::Reserved => {}
        }
    }

    /// Forgets the content of a freed range. Also forgets the rest of the pages at both ends, if no
    /// allocation uses that rest.
    pub(crate) fn drop_pages(&mut self, address: u64, bytes: u64) {
        if self.state.pages.is_empty() {
            return;
        }
        let end = address + bytes;
        let outer = (address - address % PAGE, end.next_multiple_of(PAGE));
        let (from, to) = self.state.space.gap_around(address, end, outer);
        self.state.pages.forget(from, to - from);
    }

    /// Frees all memory of a context that ends. Pool memory belongs to the device and stays. This
    /// was measured on an H200 for a created context and for a reset of the primary context
    /// (2026-11-22). For the last release of the primary context, this is assumed.
    pub(crate) fn free_context(&mut self, context: u32, report_leaks: bool) {
        let is_primary = self.state.contexts.at(context).is_some_and(|context| context.primary);
        let live: Vec<(u64, bool)> = self
            .state
            .space
            .iter()
            // Skips memory whose free is still queued, on any stream: the queued free will release
            // the memory.
            .filter(|(_, found)| found.context == context && found.freed.is_none())
            .map(|(address, found)| (address, matches!(found.kind, Kind::Pool { .. })))
            .collect();
        for (address, stays) in live {
            // Pool memory is a leak only in a primary context. If the program created the context,
            // the memory can still be freed in another context.
            if report_leaks && (is_primary || !stays) {
                self.find_leak(address);
            }
            if !stays {
                self.free_now(address);
            }
        }
        // Pool memory outlives the context. Removes the context from its records, because a new
        // context may get the same index. Does so even if a free of the memory is queued.
        for found in self.state.space.iter_mut() {
            if found.context == context && matches!(found.kind, Kind::Pool { .. }) {
                found.context = NO_CONTEXT;
            }
        }
    }
}
