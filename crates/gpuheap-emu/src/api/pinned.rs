//! Pinned and registered host memory. It is real memory of this process. The device sees it at the
//! same address.

use super::prelude::*;
use crate::state::host;
use crate::state::space::Kind;

/// Flags of `cuMemHostAlloc`.
const PINNED_FLAGS: c_uint =
    CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
/// Valid flags of `cuMemHostRegister`: portable, mapped, I/O memory, read-only.
const REGISTER_FLAGS: c_uint = 0xf;
/// `CU_MEMHOSTREGISTER_IOMEMORY`. It is refused, because the emulator has no I/O devices.
const REGISTER_IO_MEMORY: c_uint = 4;
/// Size of the host's pages, in bytes.
const HOST_PAGE: u64 = 4096;

impl Call<'_> {
    pub(crate) fn cuMemAllocHost_v2(
        &mut self,
        (pointer, bytes): args::cuMemAllocHost_v2,
    ) -> Outcome {
        self.cuMemHostAlloc((pointer, bytes, 0))
    }

    pub(crate) fn cuMemHostAlloc(
        &mut self,
        (pointer, bytes, flags): args::cuMemHostAlloc,
    ) -> Outcome {
        let context = self.current()?;
        pointer.require()?;
        fail_if(flags & !PINNED_FLAGS != 0, INVALID_VALUE)?;
        if bytes == 0 {
            return pointer.write(std::ptr::null_mut());
        }
        // All pinned memory is mapped and portable, because 64-bit systems have unified addressing.
        let flags = flags | CU_MEMHOSTALLOC_DEVICEMAP;
        let address = self.map_host(context, bytes as u64)?;
        let kind = Kind::Pinned { mapped: page_bytes(bytes as u64) as usize, flags };
        self.insert(address, bytes as u64, kind, context, self.device_of(context));
        self.host_wrote(address, bytes as u64);
        pointer.write(std::ptr::with_exposed_provenance_mut(address as usize))
    }

    /// Frees pinned memory. The pointer determines the context, so a current context is not needed
    /// (measured).
    pub(crate) fn cuMemFreeHost(&mut self, pointer: Out<c_void>) -> Outcome {
        self.initialised()?;
        if pointer.is_null() {
            return Ok(());
        }
        let address = pointer.address();
        let found = self.state.space.get(address);
        if !found.is_some_and(|found| matches!(found.kind, Kind::Pinned { .. })) {
            self.find_bad_free(address);
            return Err(INVALID_VALUE);
        }
        self.free_after_work(address)
    }

    pub(crate) fn cuMemHostGetDevicePointer_v2(
        &mut self,
        (device_pointer, pointer, flags): args::cuMemHostGetDevicePointer_v2,
    ) -> Outcome {
        self.current()?;
        fail_if(flags != 0, INVALID_VALUE)?;
        self.pinned_flags(pointer.address())?;
        device_pointer.write(pointer.address())
    }

    pub(crate) fn cuMemHostGetFlags(
        &mut self,
        (flags, pointer): args::cuMemHostGetFlags,
    ) -> Outcome {
        self.current()?;
        let found = self.pinned_flags(pointer.address())?;
        flags.write(found)
    }

    pub(crate) fn cuMemHostRegister_v2(
        &mut self,
        (pointer, bytes, flags): args::cuMemHostRegister_v2,
    ) -> Outcome {
        let context = self.current()?;
        let (address, bytes) = (pointer.address(), bytes as u64);
        fail_if(pointer.is_null() || bytes == 0 || flags & !REGISTER_FLAGS != 0, INVALID_VALUE)?;
        fail_if(flags & REGISTER_IO_MEMORY != 0, CUresult::ERROR_NOT_PERMITTED)?;
        let end = address.checked_add(bytes).ok_or(INVALID_VALUE)?;
        fail_if(
            self.state.space.find(address).is_some() || self.state.space.find(end - 1).is_some(),
            CUresult::ERROR_HOST_MEMORY_ALREADY_REGISTERED,
        )?;
        self.pin(bytes, self.device_of(context))?;
        let flags = flags | CU_MEMHOSTALLOC_DEVICEMAP;
        self.insert(address, bytes, Kind::Registered { flags }, context, self.device_of(context));
        self.host_wrote(address, bytes);
        Ok(())
    }

    /// Unregisters host memory. The pointer determines the context, so a current context is not
    /// needed (measured).
    pub(crate) fn cuMemHostUnregister(&mut self, pointer: Out<c_void>) -> Outcome {
        self.initialised()?;
        let address = pointer.address();
        fail_if(pointer.is_null(), INVALID_VALUE)?;
        match self.state.space.find(address).map(|(base, found)| (base, found.kind)) {
            Some((base, Kind::Registered { .. })) if base == address => {}
            Some((_, Kind::Registered { .. })) => return Err(INVALID_VALUE),
            _ => return Err(CUresult::ERROR_HOST_MEMORY_NOT_REGISTERED),
        }
        self.free_after_work(address)
    }

    /// Returns the flags of the pinned or registered memory at an address.
    fn pinned_flags(&self, address: u64) -> Outcome<c_uint> {
        match self.state.space.find(address).map(|(_, found)| found.kind) {
            Some(Kind::Pinned { flags, .. } | Kind::Registered { flags }) => Ok(flags),
            _ => Err(INVALID_VALUE),
        }
    }

    /// Maps host memory that is counted as pinned.
    pub(crate) fn map_host(&mut self, context: u32, bytes: u64) -> Outcome<u64> {
        let mapped =
            bytes.checked_next_multiple_of(HOST_PAGE).ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
        self.pin(mapped, self.device_of(context))?;
        host::map(mapped as usize).ok_or_else(|| {
            self.state.pinned_bytes -= mapped;
            CUresult::ERROR_OUT_OF_MEMORY
        })
    }

    /// Maps managed memory. It does not count as pinned.
    pub(crate) fn map_managed(&mut self, bytes: u64) -> Outcome<u64> {
        let mapped =
            bytes.checked_next_multiple_of(HOST_PAGE).ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
        host::map(mapped as usize).ok_or(CUresult::ERROR_OUT_OF_MEMORY)
    }

    fn pin(&mut self, bytes: u64, device: usize) -> Outcome {
        let limit = self.state.devices[device].profile.pinned_limit.unwrap_or(u64::MAX);
        match self.state.pinned_bytes.checked_add(bytes) {
            Some(total) if total <= limit => {
                self.state.pinned_bytes = total;
                Ok(())
            }
            _ => Err(CUresult::ERROR_OUT_OF_MEMORY),
        }
    }
}

/// Returns the size of a block of host memory in whole pages, in bytes.
pub(crate) fn page_bytes(bytes: u64) -> u64 {
    bytes.next_multiple_of(HOST_PAGE)
}
