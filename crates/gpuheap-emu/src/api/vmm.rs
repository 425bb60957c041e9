//! Virtual memory management.

use std::ffi::{c_int, c_void};

use gpuheap_driver::*;

use crate::emulator::Call;
use crate::state::device::Owner;
use crate::state::slots::GRANULE;
use crate::state::space::{Kind, NO_CONTEXT};
use crate::state::vmm::{Mapping, Physical, Properties};
use crate::{In, Out, Outcome};

impl Call<'_> {
    pub(crate) fn cuMemAddressReserve(
        &mut self,
        pointer: Out<CUdeviceptr>,
        bytes: usize,
        alignment: usize,
        address: CUdeviceptr,
        flags: u64,
    ) -> Outcome {
        let invalid = CUresult::ERROR_INVALID_VALUE;
        self.vmm_supported()?;
        pointer.require()?;
        let aligned = alignment == 0 || alignment.is_power_of_two();
        let (bytes, alignment) = (bytes as u64, (alignment as u64).max(GRANULE));
        if !aligned || bytes == 0 || !bytes.is_multiple_of(GRANULE) || flags != 0 {
            return Err(invalid);
        }
        // If the requested address is taken, the driver gives another one without an error.
        let wanted = address != 0
            && address.is_multiple_of(alignment)
            && self.state.space.is_free(address, bytes);
        let start =
            if wanted { Some(address) } else { self.state.space.find_gap(bytes, alignment) };
        let start = start.ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
        self.insert(start, bytes, Kind::Reserved, NO_CONTEXT, 0);
        pointer.write(start)
    }

    pub(crate) fn cuMemAddressFree(&mut self, pointer: CUdeviceptr, bytes: usize) -> Outcome {
        let invalid = CUresult::ERROR_INVALID_VALUE;
        self.vmm_supported()?;
        let end = pointer.checked_add(bytes as u64).ok_or(invalid)?;
        let found = self.state.space.get(pointer);
        let whole = found.is_some_and(|f| f.kind == Kind::Reserved && f.bytes == bytes as u64);
        if !whole || self.state.vmm.mappings.range(pointer..end).next().is_some() {
            return Err(invalid);
        }
        self.state.space.remove(pointer);
        Ok(())
    }

    pub(crate) fn cuMemCreate(
        &mut self,
        handle: Out<CUmemGenericAllocationHandle>,
        bytes: usize,
        properties: In<CUmemAllocationProp>,
        flags: u64,
    ) -> Outcome {
        self.vmm_supported()?;
        handle.require()?;
        let asked = properties.get()?;
        let device = self.vmm_device(&asked)?;
        let bytes = bytes as u64;
        if bytes == 0 || !bytes.is_multiple_of(GRANULE) || flags != 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        self.note_request(device, bytes, handle.address());
        if !self.charge(device, Owner::Vmm, bytes) {
            return Err(CUresult::ERROR_OUT_OF_MEMORY);
        }
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
        _shareable: Out<c_void>,
        handle: CUmemGenericAllocationHandle,
        _kind: c_int,
        _flags: u64,
    ) -> Outcome {
        self.vmm_supported()?;
        self.physical(handle)?;
        Err(CUresult::ERROR_NOT_SUPPORTED)
    }

    pub(crate) fn cuMemImportFromShareableHandle(
        &mut self,
        _handle: Out<CUmemGenericAllocationHandle>,
        _shareable: Out<c_void>,
        _kind: c_int,
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

    /// Maps all memory of a handle. Mapping a part is refused, as on the H200.
    pub(crate) fn cuMemMap(
        &mut self,
        pointer: CUdeviceptr,
        bytes: usize,
        offset: usize,
        handle: CUmemGenericAllocationHandle,
        flags: u64,
    ) -> Outcome {
        let invalid = CUresult::ERROR_INVALID_VALUE;
        self.vmm_supported()?;
        let found = self.physical(handle)?;
        let (base, device, whole) = (found.base, found.device, found.bytes);
        if flags != 0 {
            return Err(invalid);
        }
        let bytes = bytes as u64;
        if bytes != whole || offset != 0 || !pointer.is_multiple_of(GRANULE) {
            return Err(CUresult::ERROR_NOT_SUPPORTED);
        }
        let end = pointer.checked_add(bytes).ok_or(invalid)?;
        let inside = self.state.space.find(pointer).is_some_and(|(start, found)| {
            found.kind == Kind::Reserved && end <= start + found.bytes
        });
        let taken = self.state.vmm.mappings.range(..end).next_back();
        if !inside || taken.is_some_and(|(start, mapping)| start + mapping.bytes > pointer) {
            return Err(invalid);
        }
        self.physical(handle)?.mappings += 1;
        let physical = self.state.vmm.physical.index(handle as usize).ok_or(invalid)?;
        let access = vec![CU_MEM_ACCESS_FLAGS_PROT_NONE; self.state.devices.len()];
        let mapping = Mapping { bytes, physical, base, device, access, uses: Vec::new() };
        self.state.vmm.mappings.insert(pointer, mapping);
        Ok(())
    }

    /// Unmaps the mappings in a range. The range must not cut through a mapping. A range without
    /// mappings is not an error: measured.
    pub(crate) fn cuMemUnmap(&mut self, pointer: CUdeviceptr, bytes: usize) -> Outcome {
        let invalid = CUresult::ERROR_INVALID_VALUE;
        self.vmm_supported()?;
        let end = pointer.checked_add(bytes as u64).ok_or(invalid)?;
        if bytes == 0
            || self.state.space.find(pointer).is_none_or(|(_, f)| f.kind != Kind::Reserved)
        {
            return Err(invalid);
        }
        let whole = self.state.vmm.whole(pointer, end, true).ok_or(invalid)?;
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
        pointer: CUdeviceptr,
        bytes: usize,
        access: In<CUmemAccessDesc>,
        count: usize,
    ) -> Outcome {
        let invalid = CUresult::ERROR_INVALID_VALUE;
        self.vmm_supported()?;
        let end = pointer.checked_add(bytes as u64).ok_or(invalid)?;
        if bytes == 0 || count == 0 {
            return Err(invalid);
        }
        let whole = self.state.vmm.whole(pointer, end, false).ok_or(invalid)?;
        for index in 0..count {
            let CUmemAccessDesc { location, flags } = access.at(index).get()?;
            let known = [
                CU_MEM_ACCESS_FLAGS_PROT_NONE,
                CU_MEM_ACCESS_FLAGS_PROT_READ,
                CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
            ];
            match location.kind {
                CUmemLocationType::DEVICE if known.contains(&flags) => self.device(location.id)?,
                // The host has no access to a device's memory: measured.
                CUmemLocationType::HOST | CUmemLocationType::HOST_NUMA => {
                    return Err(CUresult::ERROR_NOT_SUPPORTED);
                }
                _ => return Err(invalid),
            };
            for start in &whole {
                let owner = self.state.vmm.mappings.get(start).map_or(0, |mapping| mapping.device);
                if owner as CUdevice != location.id
                    && !self.peers_reach(location.id, owner as CUdevice)?
                {
                    return Err(CUresult::ERROR_INVALID_DEVICE);
                }
                let slot = self
                    .state
                    .vmm
                    .mappings
                    .get_mut(start)
                    .and_then(|mapping| mapping.access.get_mut(location.id as usize));
                if let Some(slot) = slot {
                    *slot = flags;
                }
            }
        }
        Ok(())
    }

    pub(crate) fn cuMemGetAccess(
        &mut self,
        flags: Out<u64>,
        location: In<CUmemLocation>,
        pointer: CUdeviceptr,
    ) -> Outcome {
        self.vmm_supported()?;
        let location = location.get()?;
        if location.kind != CUmemLocationType::DEVICE {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        self.device(location.id)?;
        let (_, mapping) = self.state.vmm.find(pointer).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        flags.write(mapping.access_of(location.id as usize).cast_unsigned().into())
    }

    pub(crate) fn cuMemGetAllocationGranularity(
        &mut self,
        granularity: Out<usize>,
        properties: In<CUmemAllocationProp>,
        option: c_int,
    ) -> Outcome {
        self.vmm_supported()?;
        let location = properties.get()?.location;
        // If the location is a device, the driver checks this device. The driver checks no other
        // property: measured.
        if location.kind == CUmemLocationType::DEVICE
            && self.device(location.id).is_ok_and(|device| !device.profile.vmm)
        {
            return Err(CUresult::ERROR_NOT_SUPPORTED);
        }
        match option {
            // On the H200, the minimum and the recommended granularity are equal.
            0 | 1 => granularity.write(GRANULE as usize),
            _ => Err(CUresult::ERROR_INVALID_VALUE),
        }
    }

    pub(crate) fn cuMemGetAllocationPropertiesFromHandle(
        &mut self,
        properties: Out<CUmemAllocationProp>,
        handle: CUmemGenericAllocationHandle,
    ) -> Outcome {
        self.vmm_supported()?;
        let found = self.physical(handle)?.properties.get();
        properties.write(found)
    }

    /// Returns the handle of the memory that is mapped at an address, and adds a reference to that
    /// memory: measured.
    pub(crate) fn cuMemRetainAllocationHandle(
        &mut self,
        handle: Out<CUmemGenericAllocationHandle>,
        address: Out<c_void>,
    ) -> Outcome {
        self.vmm_supported()?;
        handle.require()?;
        let invalid = CUresult::ERROR_INVALID_VALUE;
        let index = self.state.vmm.find(address.address()).ok_or(invalid)?.1.physical;
        self.state.vmm.physical.at_mut(index).ok_or(invalid)?.references += 1;
        handle.write(self.state.vmm.physical.handle(index) as u64)
    }

    /// Returns the physical memory of a handle, if the caller has a reference to the memory.
    fn physical(&mut self, handle: CUmemGenericAllocationHandle) -> Outcome<&mut Physical> {
        let found = self.state.vmm.physical.get_mut(handle as usize);
        found.filter(|found| found.references != 0).ok_or(CUresult::ERROR_INVALID_VALUE)
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
        if self.state.devices.iter().any(|device| device.profile.vmm) {
            Ok(())
        } else {
            Err(CUresult::ERROR_NOT_SUPPORTED)
        }
    }

    /// Returns the device of physical memory. Host memory is not modelled: it gets `NOT_SUPPORTED`,
    /// in agreement with the device attributes. Memory for sharing by a file descriptor is accepted
    /// like any other memory, because no function exports it. The other codes were measured on a
    /// machine without fabric handles.
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
        if invalid {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        if shared & FABRIC != 0 {
            return Err(CUresult::ERROR_NOT_PERMITTED);
        }
        if location.kind != L::DEVICE || !self.device(location.id)?.profile.vmm {
            return Err(CUresult::ERROR_NOT_SUPPORTED);
        }
        Ok(location.id as usize)
    }
}
