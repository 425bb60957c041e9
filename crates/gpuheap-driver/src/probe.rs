//! A probe of a device creates a context, and allocates and frees a little memory of each kind.
//!
//! A probe shows whether the driver works for a program at all. The context takes device memory,
//! and the driver may block for any time. So run probes in a separate process that can be killed
//! after a time limit.

use std::ffi::{c_int, c_void};
use std::fmt;
use std::ptr::null_mut;

use crate::types::*;
use crate::{Driver, DriverError, check};

/// Device memory that a probe allocates, in bytes. It equals the granularity of virtual memory
/// management on every device tested so far.
const SAMPLE: usize = 2 << 20;

/// Memory that one step of [`Probe::pinned_memory`] pins, in bytes. WSL2 began to refuse pinned
/// memory between 512 MiB and 1 GiB, so a step must be smaller than 512 MiB.
const PINNED_STEP: u64 = 128 << 20;

/// Size of the range of addresses that the probe tries to reserve in one call, in bytes. PyTorch's
/// expandable segments reserve more than 32 GiB. WSL2 was seen to refuse even 32 GiB.
const ADDRESSES: usize = 64 << 30;

/// A device to probe, with its context.
///
/// The context is the device's primary context in this process. Dropping the probe releases the
/// context.
pub struct Probe<'d> {
    driver: &'d dyn Driver,
    device: CUdevice,
}

/// Reason why a probe has no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeError {
    /// The device lacks the probed feature.
    NotSupported(&'static str),
    /// A driver call failed.
    Failed(DriverError),
}

/// Result of [`Probe::virtual_memory`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VirtualMemory {
    /// Granularity, bytes: sizes of physical memory are multiples of it.
    pub granularity: u64,
    /// Bytes of addresses that one call reserved. The value is 64 GiB, or 0 if the driver refused.
    pub reserved: u64,
}

/// Result of [`Probe::pinned_memory`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinnedMemory {
    /// Total of pinned memory, in bytes.
    pub bytes: u64,
    /// Driver's error that ended the probe; `None` if all of the requested memory was pinned.
    pub refused: Option<DriverError>,
}

impl From<DriverError> for ProbeError {
    fn from(error: DriverError) -> ProbeError {
        ProbeError::Failed(error)
    }
}

impl fmt::Display for ProbeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProbeError::NotSupported(name) => write!(f, "the device has no {name}"),
            ProbeError::Failed(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ProbeError {}

/// Calls a function of the driver. The error names the function.
macro_rules! call {
    ($driver:expr, $function:ident($($arg:expr),* $(,)?)) => {
        // SAFETY: each pointer points to a local of the caller's frame, or is null if the function
        // allows that. Handles come from the same driver.
        check(stringify!($function), unsafe { $driver.$function($($arg),*) })
    };
}

/// Returns the number of devices that the driver reports. Does not block.
///
/// # Errors
///
/// The driver's error.
pub fn devices(driver: &dyn Driver) -> Result<i32, DriverError> {
    let mut count = 0;
    call!(driver, cuDeviceGetCount(&mut count))?;
    Ok(count)
}

/// Returns the UUID of a device, in NVML's format: `GPU-5f1c0f0e-…`. Does not block.
///
/// # Errors
///
/// The driver's error, for example if no device has the ordinal.
pub fn uuid(driver: &dyn Driver, ordinal: i32) -> Result<String, DriverError> {
    let mut device = 0;
    call!(driver, cuDeviceGet(&mut device, ordinal))?;
    let mut uuid = CUuuid::default();
    call!(driver, cuDeviceGetUuid(&mut uuid, device))?;
    Ok(uuid.to_string())
}

impl<'d> Probe<'d> {
    /// Creates the primary context of a device and makes it current to the calling thread. Blocks
    /// for some 0.3 s, or longer if no process uses the device.
    ///
    /// # Errors
    ///
    /// The driver's error, for example if no device has the ordinal.
    pub fn new(driver: &'d dyn Driver, ordinal: i32) -> Result<Probe<'d>, DriverError> {
        let mut device = 0;
        call!(driver, cuDeviceGet(&mut device, ordinal))?;
        let mut context = CUcontext::NULL;
        call!(driver, cuDevicePrimaryCtxRetain(&mut context, device))?;
        // From here on, dropping `probe` releases the context.
        let probe = Probe { driver, device };
        call!(driver, cuCtxSetCurrent(context))?;
        Ok(probe)
    }

    /// Returns the bytes in use on the device, by all processes. Does not block.
    ///
    /// # Errors
    ///
    /// The driver's error.
    pub fn used_bytes(&self) -> Result<u64, DriverError> {
        let (mut free, mut total) = (0, 0);
        call!(self.driver, cuMemGetInfo_v2(&mut free, &mut total))?;
        Ok(total.saturating_sub(free) as u64)
    }

    /// Reserves addresses, maps 2 MiB of memory to them and writes to that memory. Then unmaps and
    /// frees all of it. Blocks until everything is freed.
    ///
    /// # Errors
    ///
    /// The device has no virtual memory management, or a driver call failed.
    pub fn virtual_memory(&self) -> Result<VirtualMemory, ProbeError> {
        let name = "virtual memory management";
        self.require(CUdevice_attribute::VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, name)?;
        let properties = CUmemAllocationProp::device(self.device);
        let mut granularity = 0;
        call!(
            self.driver,
            cuMemGetAllocationGranularity(
                &mut granularity,
                &properties,
                CU_MEM_ALLOC_GRANULARITY_MINIMUM
            )
        )?;
        let bytes = SAMPLE.next_multiple_of(granularity.max(1));
        let mut address = 0;
        call!(self.driver, cuMemAddressReserve(&mut address, bytes, 0, 0, 0))?;
        let mapped = self.map(address, bytes, &properties);
        let freed = call!(self.driver, cuMemAddressFree(address, bytes));
        mapped.and(freed)?;
        let mut far = 0;
        let reserved = match call!(self.driver, cuMemAddressReserve(&mut far, ADDRESSES, 0, 0, 0)) {
            Ok(()) => {
                call!(self.driver, cuMemAddressFree(far, ADDRESSES))?;
                ADDRESSES as u64
            }
            Err(error) if error.is_out_of_memory() => 0,
            Err(error) => return Err(error.into()),
        };
        Ok(VirtualMemory { granularity: granularity as u64, reserved })
    }

    fn map(
        &self,
        address: CUdeviceptr,
        bytes: usize,
        properties: &CUmemAllocationProp,
    ) -> Result<(), DriverError> {
        let mut handle = 0;
        call!(self.driver, cuMemCreate(&mut handle, bytes, properties, 0))?;
        let mapped = call!(self.driver, cuMemMap(address, bytes, 0, handle, 0));
        let used = mapped.and_then(|()| {
            let location = CUmemLocation::device(self.device);
            let access = CUmemAccessDesc { location, flags: CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
            let written = call!(self.driver, cuMemSetAccess(address, bytes, &access, 1))
                .and_then(|()| self.write(address, bytes));
            let unmapped = call!(self.driver, cuMemUnmap(address, bytes));
            written.and(unmapped)
        });
        let released = call!(self.driver, cuMemRelease(handle));
        used.and(released)
    }

    /// Allocates 2 MiB from the device's default pool, writes to the memory and frees it. Then
    /// makes the pool return its memory to the device. Blocks until the memory is returned.
    ///
    /// # Errors
    ///
    /// The device has no pools, or a driver call failed.
    pub fn pool(&self) -> Result<(), ProbeError> {
        self.require(CUdevice_attribute::MEMORY_POOLS_SUPPORTED, "stream-ordered pools")?;
        let mut pool = CUmemoryPool::NULL;
        call!(self.driver, cuDeviceGetDefaultMemPool(&mut pool, self.device))?;
        let mut address = 0;
        let stream = CUstream::NULL;
        call!(self.driver, cuMemAllocFromPoolAsync(&mut address, SAMPLE, pool, stream))?;
        let written = self.write(address, SAMPLE);
        let freed = call!(self.driver, cuMemFreeAsync(address, stream));
        let done = call!(self.driver, cuStreamSynchronize(stream));
        let trimmed = call!(self.driver, cuMemPoolTrimTo(pool, 0));
        Ok(written.and(freed).and(done).and(trimmed)?)
    }

    /// Allocates 2 MiB of managed memory, writes to it from the device and frees it. Returns `true`
    /// if host and device may use managed memory at the same time. Blocks until the memory is
    /// freed.
    ///
    /// # Errors
    ///
    /// The device has no managed memory, or a driver call failed.
    pub fn managed_memory(&self) -> Result<bool, ProbeError> {
        self.require(CUdevice_attribute::MANAGED_MEMORY, "managed memory")?;
        let is_concurrent = self.attribute(CUdevice_attribute::CONCURRENT_MANAGED_ACCESS)? != 0;
        let mut address = 0;
        call!(self.driver, cuMemAllocManaged(&mut address, SAMPLE, CU_MEM_ATTACH_GLOBAL))?;
        let written = self.write(address, SAMPLE);
        let freed = call!(self.driver, cuMemFree_v2(address));
        written.and(freed)?;
        Ok(is_concurrent)
    }

    /// Pins host memory in steps of 128 MiB, until `most` bytes are pinned or the driver refuses.
    /// Then unpins all of this memory. Blocks for some 50 ms for each step.
    ///
    /// # Errors
    ///
    /// The memory cannot be unpinned.
    pub fn pinned_memory(&self, most: u64) -> Result<PinnedMemory, DriverError> {
        let mut blocks: Vec<*mut c_void> = Vec::new();
        let mut pinned = PinnedMemory { bytes: 0, refused: None };
        while pinned.bytes < most {
            let mut block = null_mut();
            let step = PINNED_STEP as usize;
            match call!(self.driver, cuMemHostAlloc(&mut block, step, CU_MEMHOSTALLOC_PORTABLE)) {
                Ok(()) => {
                    blocks.push(block);
                    pinned.bytes += PINNED_STEP;
                }
                Err(error) => {
                    pinned.refused = Some(error);
                    break;
                }
            }
        }
        let mut freed = Ok(());
        for block in blocks {
            freed = freed.and(call!(self.driver, cuMemFreeHost(block)));
        }
        freed?;
        Ok(pinned)
    }

    /// Writes to device memory and waits until the write has completed.
    fn write(&self, address: CUdeviceptr, bytes: usize) -> Result<(), DriverError> {
        call!(self.driver, cuMemsetD8_v2(address, 0, bytes))?;
        call!(self.driver, cuCtxSynchronize())
    }

    fn attribute(&self, attribute: CUdevice_attribute) -> Result<c_int, DriverError> {
        let mut value = 0;
        call!(self.driver, cuDeviceGetAttribute(&mut value, attribute, self.device))?;
        Ok(value)
    }

    fn require(&self, attribute: CUdevice_attribute, name: &'static str) -> Result<(), ProbeError> {
        if self.attribute(attribute)? == 0 { Err(ProbeError::NotSupported(name)) } else { Ok(()) }
    }
}

impl Drop for Probe<'_> {
    fn drop(&mut self) {
        // Ignores errors: if the context cannot be released, it ends with the process.
        let _: Result<(), DriverError> = call!(self.driver, cuCtxSetCurrent(CUcontext::NULL));
        let _: Result<(), DriverError> =
            call!(self.driver, cuDevicePrimaryCtxRelease_v2(self.device));
    }
}

impl fmt::Debug for Probe<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Probe").field("device", &self.device).finish()
    }
}
