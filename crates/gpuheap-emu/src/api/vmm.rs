//! Virtual memory management.

use super::prelude::*;
use crate::state::device::Owner;
use crate::state::slots::GRANULE;
use crate::state::space::{Kind, NO_CONTEXT};
use crate::state::vmm::{Mapping, Physical, Properties};

/// Access flags that a mapping may have.
const ACCESS: [c_int; 3] = [
    CU_MEM_ACCESS_FLAGS_PROT_NONE,
    CU_MEM_ACCESS_FLAGS_PROT_READ,
    CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
];

impl Call<'_> {
    pub(crate) fn cuMemAddressReserve(
        &mut self,
        (pointer, bytes, alignment, address, flags): args::cuMemAddressReserve,
    ) -> Outcome {
        self.vmm_supported()?;
        pointer.require()?;
        let aligned = alignment == 0 || alignment.is_power_of_two();
        let (bytes, alignment) = (bytes as u64, (alignment as u64).max(GRANULE));
        fail_if(
            !aligned || bytes == 0 || !bytes.is_multiple_of(GRANULE) || flags != 0,
            INVALID_VALUE,
        )?;
        // If the requested address is taken, the driver gives another address without an error.
        let wanted = address != 0
            && address.is_multiple_of(alignment)
            && self.state.space.is_free(address, bytes);
        let start =
            if wanted { Some(address) } else { self.state.space.find_gap(bytes, alignment) };
        let start = start.ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
        self.insert(start, bytes, Kind::Reserved, NO_CONTEXT, 0);
        pointer.write(start)
    }

    pub(crate) fn cuMemAddressFree(&mut self, (pointer, bytes): args::cuMemAddressFree) -> Outcome {
        self.vmm_supported()?;
        let end = pointer.checked_add(bytes as u64).ok_or(INVALID_VALUE)?;
        let found = self.state.space.get(pointer);
        let whole = found.is_some_and(|f| f.kind == Kind::Reserved && f.bytes == bytes as u64);
        fail_if(
            !whole || self.state.vmm.mappings.range(pointer..end).next().is_some(),
            INVALID_VALUE,
        )?;
        self.state.space.remove(pointer);
        Ok(())
    }

    pub(crate) fn cuMemCreate(
        &mut self,
        (handle, bytes, properties, flags): args::cuMemCreate,
    ) -> Outcome {
        self.vmm_supported()?;
        handle.require()?;
        let asked = properties.get()?;
        let device = self.vmm_device(&asked)?;
        let bytes = bytes as u64;
        fail_if(bytes == 0 || !bytes.is_multiple_of(GRANULE) || flags != 0, INVALID_VALUE)?;
        self.note_request(device, bytes, handle.address());
        fail_if(!self.charge(device, Owner::Vmm, bytes), CUresult::ERROR_OUT_OF_MEMORY)?;
        let base = self.state.vmm.take_physical(bytes);
        let properties = Properties::new(asked);
        let made = Physical { bytes, base, device, properties, references: 1, mappings: 0 };
        let made = self.state.vmm.physical.insert(made);
        handle.write(made as u64)
    }

    /// Refuses to share physical memory, because no other process sees memory of the emulated
    /// device.
    pub(crate) fn cuMemExportToShareableHandle(
        &mut self,
        (_shareable, handle, _kind, _flags): args::cuMemExportToShareableHandle,
    ) -> Outcome {
        self.vmm_supported()?;
        self.physical(handle)?;
        Err(CUresult::ERROR_NOT_SUPPORTED)
    }

    pub(crate) fn cuMemImportFromShareableHandle(
        &mut self,
        (_handle, _shareable, _kind): args::cuMemImportFromShareableHandle,
    ) -> Outcome {
        self.vmm_supported()?;
        Err(CUresult::ERROR_NOT_SUPPORTED)
    }

    pub(crate) fn cuMemRelease(&mut self, handle: CUmemGenericAllocationHandle) -> Outcome {
        self.vmm_supported()?;
        let found = self.physical(handle)?;
        found.references -= 1;
        if let Some(index) = self.state.vmm.physical.index(handle as usize) {
            self.free_unused_physical(index);
        }
        Ok(())
    }

    /// Maps all memory of a handle. A part cannot be mapped, as on an H200.
    pub(crate) fn cuMemMap(
        &mut self,
        (pointer, bytes, offset, handle, flags): args::cuMemMap,
    ) -> Outcome {
        self.vmm_supported()?;
        let found = self.physical(handle)?;
        let (base, device, whole) = (found.base, found.device, found.bytes);
        fail_if(flags != 0, INVALID_VALUE)?;
        let bytes = bytes as u64;
        fail_if(
            bytes != whole || offset != 0 || !pointer.is_multiple_of(GRANULE),
            CUresult::ERROR_NOT_SUPPORTED,
        )?;
        let end = pointer.checked_add(bytes).ok_or(INVALID_VALUE)?;
        let inside = self.state.space.find(pointer).is_some_and(|(start, found)| {
            found.kind == Kind::Reserved && end <= start + found.bytes
        });
        let taken = self.state.vmm.mappings.range(..end).next_back();
        fail_if(
            !inside || taken.is_some_and(|(start, mapping)| start + mapping.bytes > pointer),
            INVALID_VALUE,
        )?;
        self.physical(handle)?.mappings += 1;
        let physical = self.state.vmm.physical.index(handle as usize).ok_or(INVALID_VALUE)?;
        let access = vec![CU_MEM_ACCESS_FLAGS_PROT_NONE; self.state.devices.len()];
        let mapping = Mapping { bytes, physical, base, device, access, uses: Vec::new() };
        self.state.vmm.mappings.insert(pointer, mapping);
        Ok(())
    }

    /// Unmaps the mappings in a range. The range must not cut through a mapping. A range without
    /// mappings is not an error (measured).
    pub(crate) fn cuMemUnmap(&mut self, (pointer, bytes): args::cuMemUnmap) -> Outcome {
        self.vmm_supported()?;
        let end = pointer.checked_add(bytes as u64).ok_or(INVALID_VALUE)?;
        if bytes == 0
            || self.state.space.find(pointer).is_none_or(|(_, f)| f.kind != Kind::Reserved)
        {
            return Err(INVALID_VALUE);
        }
        let whole = self.state.vmm.whole(pointer, end, true).ok_or(INVALID_VALUE)?;
        for start in whole {
            let Some(mapping) = self.state.vmm.mappings.remove(&start) else { continue };
            self.note_unmap(start, &mapping);
            if let Some(physical) = self.state.vmm.physical.at_mut(mapping.physical) {
                physical.mappings -= 1;
            }
            self.free_unused_physical(mapping.physical);
        }
        Ok(())
    }

    pub(crate) fn cuMemSetAccess(
        &mut self,
        (pointer, bytes, access, count): args::cuMemSetAccess,
    ) -> Outcome {
        self.vmm_supported()?;
        let end = pointer.checked_add(bytes as u64).ok_or(INVALID_VALUE)?;
        fail_if(bytes == 0 || count == 0, INVALID_VALUE)?;
        let whole = self.state.vmm.whole(pointer, end, false).ok_or(INVALID_VALUE)?;
        for index in 0..count {
            let CUmemAccessDesc { location, flags } = access.at(index).get()?;
            match location.kind {
                CUmemLocationType::DEVICE if ACCESS.contains(&flags) => {
                    self.device(location.id).map_err(|_| INVALID_VALUE)?
                }
                // The host has no access to a device's memory (measured).
                CUmemLocationType::HOST | CUmemLocationType::HOST_NUMA => {
                    return Err(CUresult::ERROR_NOT_SUPPORTED);
                }
                _ => return Err(INVALID_VALUE),
            };
            for start in &whole {
                let owner = self.state.vmm.mappings.get(start).map_or(0, |mapping| mapping.device);
                let reaches = owner as CUdevice == location.id
                    || self.peers_reach(location.id, owner as CUdevice)?;
                fail_if(!reaches, CUresult::ERROR_INVALID_DEVICE)?;
                if let Some(mapping) = self.state.vmm.mappings.get_mut(start) {
                    mapping.access[location.id as usize] = flags;
                }
            }
        }
        Ok(())
    }

    pub(crate) fn cuMemGetAccess(
        &mut self,
        (flags, location, pointer): args::cuMemGetAccess,
    ) -> Outcome {
        self.vmm_supported()?;
        let location = location.get()?;
        fail_if(location.kind != CUmemLocationType::DEVICE, INVALID_VALUE)?;
        self.device(location.id)?;
        let (_, mapping) = self.state.vmm.find(pointer).ok_or(INVALID_VALUE)?;
        flags.write(mapping.access_of(location.id as usize).cast_unsigned().into())
    }

    pub(crate) fn cuMemGetAllocationGranularity(
        &mut self,
        (granularity, properties, option): args::cuMemGetAllocationGranularity,
    ) -> Outcome {
        self.vmm_supported()?;
        let location = properties.get()?.location;
        // The driver refuses only a device without virtual memory management (measured).
        if location.kind == CUmemLocationType::DEVICE
            && self.device(location.id).is_ok_and(|device| !device.profile.vmm)
        {
            return Err(CUresult::ERROR_NOT_SUPPORTED);
        }
        match option {
            // On an H200, the minimum and the recommended granularity are equal.
            0 | 1 => granularity.write(GRANULE as usize),
            _ => Err(INVALID_VALUE),
        }
    }

    pub(crate) fn cuMemGetAllocationPropertiesFromHandle(
        &mut self,
        (properties, handle): args::cuMemGetAllocationPropertiesFromHandle,
    ) -> Outcome {
        self.vmm_supported()?;
        let found = self.physical(handle)?.properties.get();
        properties.write(found)
    }

    /// Returns the handle of the memory that is mapped at an address. Adds a reference to that
    /// memory, as a real driver does (measured).
    pub(crate) fn cuMemRetainAllocationHandle(
        &mut self,
        (handle, address): args::cuMemRetainAllocationHandle,
    ) -> Outcome {
        self.vmm_supported()?;
        handle.require()?;
        let index = self.state.vmm.find(address.address()).ok_or(INVALID_VALUE)?.1.physical;
        self.state.vmm.physical.at_mut(index).ok_or(INVALID_VALUE)?.references += 1;
        handle.write(self.state.vmm.physical.handle(index) as u64)
    }

    /// Returns the physical memory of a handle, if the caller has a reference to the memory.
    fn physical(&mut self, handle: CUmemGenericAllocationHandle) -> Outcome<&mut Physical> {
        let found = self.state.vmm.physical.get_mut(handle as usize);
        found.filter(|found| found.references != 0).ok_or(INVALID_VALUE)
    }

    /// Frees physical memory that has neither a reference nor a mapping left.
    fn free_unused_physical(&mut self, index: u32) {
        let unused = |found: &Physical| found.references == 0 && found.mappings == 0;
        if self.state.vmm.physical.at(index).is_some_and(unused)
            && let Some(gone) = self.state.vmm.physical.remove_at(index)
        {
            self.state.pages.forget(gone.base, gone.bytes);
            self.release(gone.device, Owner::Vmm, gone.bytes);
        }
    }

    fn vmm_supported(&self) -> Outcome {
        self.initialised()?;
        let has_vmm = self.state.devices.iter().any(|device| device.profile.vmm);
        fail_if(!has_vmm, CUresult::ERROR_NOT_SUPPORTED)
    }

    /// Returns the device on which physical memory is requested. Refuses host memory with
    /// `NOT_SUPPORTED`: it is not modelled, and the device attributes report this. Accepts memory
    /// for sharing by a file descriptor. No function exports the descriptor, so the memory is like
    /// any other. The other error codes were measured on a machine without fabric handles.
    fn vmm_device(&mut self, asked: &CUmemAllocationProp) -> Outcome<usize> {
        type L = CUmemLocationType;
        const WINDOWS: c_int = 2 | 4;
        const FABRIC: c_int = 8;
        let (location, shared) = (asked.location, asked.requested_handle_types);
        if location.kind == L::DEVICE {
            self.device(location.id)?;
        }
        let invalid = asked.kind != CU_MEM_ALLOCATION_TYPE_PINNED
            || shared & WINDOWS != 0
            || match location.kind {
                L::DEVICE => false,
                L::HOST => shared != 0,
                // The emulated host has one node.
                L::HOST_NUMA => location.id != 0,
                _ => true,
            };
        fail_if(invalid, INVALID_VALUE)?;
        fail_if(shared & FABRIC != 0, CUresult::ERROR_NOT_PERMITTED)?;
        fail_if(
            location.kind != L::DEVICE || !self.device(location.id)?.profile.vmm,
            CUresult::ERROR_NOT_SUPPORTED,
        )?;
        Ok(location.id as usize)
    }
}
