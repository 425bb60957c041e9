//! Managed memory. Device and host share real memory of this process.

use super::prelude::*;
use crate::api::pinned::page_bytes;
use crate::state::device::Owner;
use crate::state::host;
use crate::state::space::{Advice, Kind};
use crate::state::stream::{StreamKind, Work};

/// Valid flags to allocate managed memory. `CU_MEM_ATTACH_SINGLE` can only be set later.
const ATTACH: [c_uint; 2] = [CU_MEM_ATTACH_GLOBAL, CU_MEM_ATTACH_HOST];
/// `CU_DEVICE_INVALID`: the location of a range whose location was never set.
const NO_LOCATION: c_int = -2;

/// Advice of `cuMemAdvise`, and the range attributes that show it.
mod advice {
    use std::ffi::c_int;
    pub(super) const SET_READ_MOSTLY: c_int = 1;
    pub(super) const UNSET_READ_MOSTLY: c_int = 2;
    pub(super) const SET_PREFERRED_LOCATION: c_int = 3;
    pub(super) const UNSET_PREFERRED_LOCATION: c_int = 4;
    pub(super) const SET_ACCESSED_BY: c_int = 5;
    pub(super) const UNSET_ACCESSED_BY: c_int = 6;
    /// Advice that uses its location argument.
    pub(super) const WITH_LOCATION: [c_int; 3] =
        [SET_PREFERRED_LOCATION, SET_ACCESSED_BY, UNSET_ACCESSED_BY];
    pub(super) const READ_MOSTLY: c_int = 1;
    pub(super) const PREFERRED_LOCATION: c_int = 2;
    pub(super) const ACCESSED_BY: c_int = 3;
    pub(super) const LAST_PREFETCH_LOCATION: c_int = 4;
    pub(super) const PREFERRED_LOCATION_TYPE: c_int = 5;
    pub(super) const PREFERRED_LOCATION_ID: c_int = 6;
    pub(super) const LAST_PREFETCH_LOCATION_TYPE: c_int = 7;
    pub(super) const LAST_PREFETCH_LOCATION_ID: c_int = 8;
}

impl Call<'_> {
    pub(crate) fn cuMemAllocManaged(
        &mut self,
        (pointer, bytes, flags): args::cuMemAllocManaged,
    ) -> Outcome {
        let context = self.current()?;
        pointer.require()?;
        fail_if(bytes == 0 || !ATTACH.contains(&flags), INVALID_VALUE)?;
        let device = self.device_of(context);
        let address = self.map_managed(bytes as u64)?;
        let mapped = page_bytes(bytes as u64);
        // Without concurrent access, all managed memory is on the device while the device works.
        let charged = if self.is_concurrent(device) { 0 } else { mapped };
        if !self.charge(device, Owner::Managed, charged) {
            self.note_request(device, bytes as u64, pointer.address());
            host::unmap(address, mapped as usize);
            return Err(CUresult::ERROR_OUT_OF_MEMORY);
        }
        let kind = Kind::Managed { mapped: mapped as usize, charged };
        self.insert(address, bytes as u64, kind, context, device);
        if let Some(made) = self.state.space.get_mut(address) {
            // Managed memory has this flag from the start (measured).
            made.sync_memops = true;
        }
        self.host_wrote(address, bytes as u64);
        pointer.write(address)
    }

    pub(crate) fn cuMemPrefetchAsync(
        &mut self,
        (pointer, bytes, device, stream): args::cuMemPrefetchAsync,
    ) -> Outcome {
        self.cuMemPrefetchAsync_v2((pointer, bytes, location_of(device), 0, stream))
    }

    pub(crate) fn cuMemPrefetchAsync_v2(
        &mut self,
        (pointer, bytes, location, flags, stream): args::cuMemPrefetchAsync_v2,
    ) -> Outcome {
        let stream = self.stream(stream)?;
        fail_if(flags != 0, INVALID_VALUE)?;
        let place = self.managed_place(location, self.device_of_stream(stream))?;
        let base = self.managed_range(pointer, bytes as u64)?;
        if let Some(found) = self.state.space.get_mut(base) {
            found.advice.get_or_insert_default().last_prefetch = Some(place);
        }
        self.take_turn(stream);
        Ok(())
    }

    /// Prefetches each range like `cuMemPrefetchAsync`. If a range is wrong, the ranges before it
    /// are still prefetched. Each location has a group of ranges, from its index in `firsts` to the
    /// next group's. If a group does not begin after the previous group, that group and all later
    /// groups have no ranges.
    pub(crate) fn cuMemPrefetchBatchAsync(
        &mut self,
        (pointers, sizes, count, locations, firsts, locations_count, flags, stream): args::cuMemPrefetchBatchAsync,
    ) -> Outcome {
        let index = self.batch_stream(stream, flags)?;
        let here = self.device_of_stream(index);
        fail_if(
            count == 0 || locations_count == 0 || locations_count > count || firsts.get()? != 0,
            INVALID_VALUE,
        )?;
        let mut groups = Vec::new();
        for group in 0..locations_count {
            let first = firsts.at(group).get()?;
            let place = self.managed_place(locations.at(group).get()?, here);
            let place = place.map_err(|code| match code {
                CUresult::ERROR_INVALID_DEVICE if self.is_concurrent(here) => INVALID_VALUE,
                code => code,
            })?;
            fail_if(first >= count, INVALID_VALUE)?;
            // For the host, the driver's batch call records the id that the caller passed
            // (measured), not the -1 of `HOST`.
            let id = locations.at(group).get()?.id;
            groups.push((first, CUmemLocation { id, ..place }));
        }
        self.refuse_while_recording(index)?;
        let mut group = 0;
        for at in 0..count {
            if at != 0 && groups.get(group + 1).is_some_and(|(first, _)| *first == at) {
                group += 1;
            }
            let base = self.managed_range(pointers.at(at).get()?, sizes.at(at).get()? as u64)?;
            if let Some(found) = self.state.space.get_mut(base) {
                found.advice.get_or_insert_default().last_prefetch = Some(groups[group].1);
            }
        }
        self.take_turn(index);
        Ok(())
    }

    /// Enqueues work that does nothing, and keeps the content. A program must not rely on the
    /// content.
    pub(crate) fn cuMemDiscardBatchAsync(
        &mut self,
        (pointers, sizes, count, flags, stream): args::cuMemDiscardBatchAsync,
    ) -> Outcome {
        let index = self.batch_stream(stream, flags)?;
        let here = CUmemLocation::device(self.device_of_stream(index) as CUdevice);
        self.managed_place(here, 0)?;
        fail_if(count == 0, INVALID_VALUE)?;
        self.refuse_while_recording(index)?;
        for at in 0..count {
            self.managed_range(pointers.at(at).get()?, sizes.at(at).get()? as u64)?;
        }
        self.take_turn(index);
        Ok(())
    }

    /// Enqueues work that does nothing, so that the call has a place in the stream's order.
    pub(crate) fn take_turn(&mut self, stream: u32) {
        self.begin(stream);
        self.enqueue(stream, Work::Nothing, &[]);
    }

    /// Returns the stream of a batch, and refuses the legacy default stream.
    fn batch_stream(&mut self, stream: CUstream, flags: u64) -> Outcome<u32> {
        let index = self.stream(stream)?;
        let kind = self.state.streams.at(index).map(|stream| stream.kind);
        fail_if(flags != 0 || kind == Some(StreamKind::Legacy), INVALID_VALUE)?;
        Ok(index)
    }

    pub(crate) fn cuMemAdvise(
        &mut self,
        (pointer, bytes, advice, device): args::cuMemAdvise,
    ) -> Outcome {
        self.current()?;
        // A wrong device fails with `INVALID_DEVICE` here, and with `INVALID_VALUE` in
        // `cuMemAdvise_v2` (both measured).
        if advice::WITH_LOCATION.contains(&advice) && device != CU_DEVICE_CPU {
            self.device(device)?;
        }
        self.cuMemAdvise_v2((pointer, bytes, advice, location_of(device)))
    }

    /// Stores advice for the whole allocation. Advice for a NUMA node of the host is accepted and
    /// has no effect (measured on a host with one node).
    pub(crate) fn cuMemAdvise_v2(
        &mut self,
        (pointer, bytes, advice, location): args::cuMemAdvise_v2,
    ) -> Outcome {
        type L = CUmemLocationType;
        let context = self.current()?;
        let here = self.device_of(context);
        if !(advice::SET_READ_MOSTLY..=advice::UNSET_ACCESSED_BY).contains(&advice)
            || !(L::DEVICE.0..=L::HOST_NUMA_CURRENT.0).contains(&location.kind.0)
        {
            return Err(INVALID_VALUE);
        }
        let is_node = matches!(location.kind, L::HOST_NUMA | L::HOST_NUMA_CURRENT);
        let place = if advice::WITH_LOCATION.contains(&advice) {
            fail_if(is_node && advice != advice::SET_PREFERRED_LOCATION, INVALID_VALUE)?;
            self.managed_place(location, here).map_err(|code| match code {
                CUresult::ERROR_INVALID_DEVICE if self.is_concurrent(here) => INVALID_VALUE,
                code => code,
            })?
        } else {
            HOST
        };
        let base = self.managed_range(pointer, bytes as u64)?;
        if is_node {
            return Ok(());
        }
        let Some(found) = self.state.space.get_mut(base) else { return Ok(()) };
        let kept = found.advice.get_or_insert_default();
        match advice {
            advice::SET_READ_MOSTLY => kept.read_mostly = true,
            advice::UNSET_READ_MOSTLY => kept.read_mostly = false,
            advice::SET_PREFERRED_LOCATION => kept.preferred = Some(place),
            advice::UNSET_PREFERRED_LOCATION => kept.preferred = None,
            advice::SET_ACCESSED_BY if !kept.accessed_by.contains(&device_of(place)) => {
                kept.accessed_by.push(device_of(place));
            }
            advice::UNSET_ACCESSED_BY => {
                kept.accessed_by.retain(|other| *other != device_of(place));
            }
            _ => {}
        }
        Ok(())
    }

    pub(crate) fn cuMemRangeGetAttribute(
        &mut self,
        (data, data_bytes, attribute, pointer, bytes): args::cuMemRangeGetAttribute,
    ) -> Outcome {
        self.current()?;
        let base = self.managed_range(pointer, bytes as u64)?;
        let nothing = Advice::default();
        let found = self.state.space.get(base).ok_or(INVALID_VALUE)?;
        let kept = found.advice.as_deref().unwrap_or(&nothing);
        // SAFETY: the caller passes a pointer to `data_bytes` bytes: one or more `int`.
        let data = unsafe { data.cast::<c_int>() };
        let one =
            |value: c_int| if data_bytes == 4 { data.write(value) } else { Err(INVALID_VALUE) };
        match attribute {
            advice::READ_MOSTLY => one(c_int::from(kept.read_mostly)),
            advice::PREFERRED_LOCATION => one(kept.preferred.map_or(NO_LOCATION, device_of)),
            advice::LAST_PREFETCH_LOCATION => {
                one(kept.last_prefetch.map_or(NO_LOCATION, device_of))
            }
            advice::PREFERRED_LOCATION_TYPE => one(kept.preferred.unwrap_or(NOWHERE).kind.0),
            advice::PREFERRED_LOCATION_ID => one(kept.preferred.unwrap_or(NOWHERE).id),
            advice::LAST_PREFETCH_LOCATION_TYPE => {
                one(kept.last_prefetch.unwrap_or(NOWHERE).kind.0)
            }
            advice::LAST_PREFETCH_LOCATION_ID => one(kept.last_prefetch.unwrap_or(NOWHERE).id),
            advice::ACCESSED_BY if data_bytes != 0 && data_bytes.is_multiple_of(4) => {
                for index in 0..data_bytes / 4 {
                    data.at(index)
                        .write(kept.accessed_by.get(index).copied().unwrap_or(NO_LOCATION))?;
                }
                Ok(())
            }
            _ => Err(INVALID_VALUE),
        }
    }

    pub(crate) fn cuMemRangeGetAttributes(
        &mut self,
        (data, data_bytes, attributes, count, pointer, bytes): args::cuMemRangeGetAttributes,
    ) -> Outcome {
        self.current()?;
        for index in 0..count {
            let (data, data_bytes) = (data.at(index).follow()?, data_bytes.at(index).get()?);
            let attribute = attributes.at(index).get()?;
            self.cuMemRangeGetAttribute((data, data_bytes, attribute, pointer, bytes))?;
        }
        Ok(())
    }

    /// Accepts an attachment of managed memory to a stream, and does nothing: the checks find
    /// unordered uses whatever the attachment is. Refuses pageable memory, because it belongs to no
    /// device.
    pub(crate) fn cuStreamAttachMemAsync(
        &mut self,
        (stream, pointer, bytes, flags): args::cuStreamAttachMemAsync,
    ) -> Outcome {
        let stream = self.stream(stream)?;
        let kind = self.state.streams.at(stream).map(|stream| stream.kind);
        match flags {
            CU_MEM_ATTACH_GLOBAL | CU_MEM_ATTACH_HOST => {}
            // CU_MEM_ATTACH_SINGLE needs a single stream, and the legacy default stream stands for
            // several.
            CU_MEM_ATTACH_SINGLE if kind != Some(StreamKind::Legacy) => {}
            _ => return Err(INVALID_VALUE),
        }
        let found = self.state.space.get(pointer).ok_or(INVALID_VALUE)?;
        let whole = bytes == 0 || bytes as u64 == found.bytes;
        if !matches!(found.kind, Kind::Managed { .. }) || !whole {
            return Err(INVALID_VALUE);
        }
        self.take_turn(stream);
        Ok(())
    }

    /// Checks a location for managed memory. The location must be the host, a NUMA node of the
    /// host, or a device with concurrent managed access. `here` is the device of the call.
    fn managed_place(&mut self, location: CUmemLocation, here: usize) -> Outcome<CUmemLocation> {
        type L = CUmemLocationType;
        // For a location on the host, the call's device must support concurrent managed access.
        let device = if location.kind == L::DEVICE { location.id } else { here as CUdevice };
        fail_if(
            !self.device(device)?.profile.concurrent_managed_access,
            CUresult::ERROR_INVALID_DEVICE,
        )?;
        match location.kind {
            L::DEVICE => Ok(location),
            L::HOST => Ok(HOST),
            // The emulated host has one node.
            L::HOST_NUMA if location.id == 0 => Ok(location),
            L::HOST_NUMA_CURRENT => Ok(location),
            _ => Err(INVALID_VALUE),
        }
    }

    /// Returns whether host and device may use managed memory at the same time.
    fn is_concurrent(&self, device: usize) -> bool {
        self.state.devices[device].profile.concurrent_managed_access
    }

    fn managed_range(&mut self, pointer: u64, bytes: u64) -> Outcome<u64> {
        let (base, found) = self.state.space.find(pointer).ok_or(INVALID_VALUE)?;
        let inside =
            bytes != 0 && pointer - base + bytes.min(u64::MAX / 2) <= page_bytes(found.bytes);
        let managed = match found.kind {
            Kind::Managed { .. } => true,
            Kind::Pool { pool, .. } => self.is_pool_managed(pool) && found.freed.is_none(),
            _ => false,
        };
        if managed && inside { Ok(base) } else { Err(INVALID_VALUE) }
    }
}

/// Location that range attributes return for the host (measured). Only batches keep another id.
const HOST: CUmemLocation = CUmemLocation { kind: CUmemLocationType::HOST, id: -1 };
/// Location of a range whose location was never set.
const NOWHERE: CUmemLocation = CUmemLocation { kind: CUmemLocationType::INVALID, id: NO_LOCATION };

/// Returns a location as the ordinal for `cuMemAdvise` and `cuMemPrefetchAsync`. A NUMA node of the
/// host becomes the ordinal of the host.
fn device_of(location: CUmemLocation) -> CUdevice {
    if location.kind == CUmemLocationType::DEVICE { location.id } else { CU_DEVICE_CPU }
}

fn location_of(device: CUdevice) -> CUmemLocation {
    match device {
        CU_DEVICE_CPU => HOST,
        device => CUmemLocation::device(device),
    }
}
