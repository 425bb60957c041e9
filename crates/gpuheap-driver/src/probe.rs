//! Probes of a device: a context, and a little of each kind of memory, taken and given back.
//!
//! They show whether the driver serves a program at all. A probe creates a context. That costs
//! memory of the device, and may block for as long as the driver does. So it belongs in a process
//! of its own that ends if this takes too long.

use std::ffi::{c_int, c_void};
use std::fmt;
use std::ptr::null_mut;

use crate::types::*;
use crate::{Driver, DriverError, check};

/// Device memory that a probe takes: the granularity of virtual memory management on every device
/// so far.
const SAMPLE: usize = 2 << 20;

/// Pinned memory of one step. WSL2 was seen to refuse between 512 MiB and 1 GiB, so a step has to
/// be smaller than that.
const PINNED_STEP: u64 = 128 << 20;

/// Addresses that are reserved at once. WSL2 was seen to refuse 32 GiB, and PyTorch's expandable
/// segments reserve more than that.
const ADDRESSES: usize = 64 << 30;

/// A device with a context, to be probed.
///
/// The context is the primary one of this process. It is released by the drop.
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
    /// Size of which physical memory is a multiple, bytes.
    pub granularity: u64,
    /// Addresses that could be reserved at once, bytes: 64 GiB, or 0 if that was refused.
    pub reserved: u64,
}

/// Result of [`Probe::pinned_memory`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinnedMemory {
    /// Memory that was pinned in all, bytes.
    pub bytes: u64,
    /// Reason why no more was pinned; `None` if the probe stopped by itself.
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

/// Calls a function of the driver, and names it in the error.
macro_rules! call {
    ($driver:expr, $function:ident($($arg:expr),* $(,)?)) => {
        // SAFETY: pointers are to locals of the caller's frame or null where that is allowed, and
        // handles come from the same driver.
        check(stringify!($function), unsafe { $driver.$function($($arg),*) })
    };
}

/// Returns the number of devices that the driver shows. Does not block.
///
/// # Errors
///
/// The error of the driver.
pub fn devices(driver: &dyn Driver) -> Result<i32, DriverError> {
    let mut count = 0;
    call!(driver, cuDeviceGetCount(&mut count))?;
    Ok(count)
}

/// Returns the UUID of a device, as NVML writes it: `GPU-5f1c0f0e-…`. Does not block.
///
/// # Errors
///
/// The error of the driver, also for an ordinal that no device has.
pub fn uuid(driver: &dyn Driver, ordinal: i32) -> Result<String, DriverError> {
    let mut device = 0;
    call!(driver, cuDeviceGet(&mut device, ordinal))?;
    let mut uuid = CUuuid::default();
    call!(driver, cuDeviceGetUuid(&mut uuid, device))?;
    let mut text = String::from("GPU-");
    for (index, byte) in uuid.bytes.iter().enumerate() {
        if [4, 6, 8, 10].contains(&index) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    Ok(text)
}

impl<'d> Probe<'d> {
    /// Creates the primary context of a device and makes it current to the calling thread. Blocks
    /// for some 0.3 s, longer if no process uses the device.
    ///
    /// # Errors
    ///
    /// The error of the driver, also for an ordinal that no device has.
    pub fn new(driver: &'d dyn Driver, ordinal: i32) -> Result<Probe<'d>, DriverError> {
        let mut device = 0;
        call!(driver, cuDeviceGet(&mut device, ordinal))?;
        let mut context = CUcontext::NULL;
        call!(driver, cuDevicePrimaryCtxRetain(&mut context, device))?;
        // From here on the drop releases the context.
        let probe = Probe { driver, device };
        call!(driver, cuCtxSetCurrent(context))?;
        Ok(probe)
    }

    /// Returns the bytes in use on the device, by all processes. Does not block.
    ///
    /// # Errors
    ///
    /// The error of the driver.
    pub fn used_bytes(&self) -> Result<u64, DriverError> {
        let (mut free, mut total) = (0, 0);
        call!(self.driver, cuMemGetInfo_v2(&mut free, &mut total))?;
        Ok(total.saturating_sub(free) as u64)
    }

    /// Reserves addresses, maps 2 MiB of memory there, writes to it and takes all of it down.
    /// Blocks until that is done.
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

    /// Allocates 2 MiB from the device's own pool, writes to it, frees it, and has the pool return
    /// its memory. Blocks until that is done.
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
    /// if host and device may use it at one time. Blocks until that is done.
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

    /// Pins host memory in steps of 128 MiB until `most` bytes are pinned or the driver refuses,
    /// and unpins all of it. Blocks for some 50 ms for each step.
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

    /// Writes to device memory and waits for it.
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
        // A context that cannot be released ends with the process.
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
