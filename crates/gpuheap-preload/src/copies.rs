//! Records calls that copy between host and device, or between devices.

use std::ffi::c_void;
use std::time::Instant;

use gpuheap_capture::{CopyDirection, CopyMemory};
use gpuheap_driver::{CUDA_MEMCPY2D, CUdeviceptr, CUmemorytype, CUresult};

use crate::allocate::{Number as _, stack};
use crate::copy_sums::{self, Copy};
use crate::layouts::{Volume, VolumeEnd};
use crate::threads::Guard;
use crate::{real, recorder};

/// Source or destination of a copy.
#[derive(Clone, Copy)]
pub(crate) enum End {
    /// Host memory at an address.
    Host(u64),
    /// Memory of a device.
    Device,
    /// Host or device memory. The address decides.
    Either(u64),
}

impl End {
    /// Returns the address, if the memory is host memory.
    fn host(self) -> Option<u64> {
        match self {
            End::Host(address) => Some(address),
            End::Either(address) if !is_on_device(address) => Some(address),
            _ => None,
        }
    }

    /// Converts one end of the driver's copy structure. The first copied byte is at `offset`.
    fn of(kind: CUmemorytype, host: *const c_void, device: CUdeviceptr, offset: usize) -> End {
        let offset = offset as u64;
        match kind {
            CUmemorytype::HOST => End::Host(host.cast_mut().number().wrapping_add(offset)),
            CUmemorytype::UNIFIED => End::Either(device.wrapping_add(offset)),
            _ => End::Device,
        }
    }
}

/// Destination, source and size of a copy.
#[derive(Clone, Copy)]
pub(crate) struct Extent {
    pub(crate) to: End,
    pub(crate) from: End,
    pub(crate) bytes: usize,
    /// `true` if the copied memory has no gaps.
    pub(crate) is_plain: bool,
}

impl From<CUDA_MEMCPY2D> for Extent {
    fn from(copy: CUDA_MEMCPY2D) -> Extent {
        let offset = |x: usize, y: usize, pitch| x.wrapping_add(y.wrapping_mul(pitch));
        let to = offset(copy.dstXInBytes, copy.dstY, copy.dstPitch);
        let from = offset(copy.srcXInBytes, copy.srcY, copy.srcPitch);
        Extent {
            to: End::of(copy.dstMemoryType, copy.dstHost, copy.dstDevice, to),
            from: End::of(copy.srcMemoryType, copy.srcHost, copy.srcDevice, from),
            bytes: copy.WidthInBytes.saturating_mul(copy.Height),
            is_plain: false,
        }
    }
}

impl From<Volume> for Extent {
    fn from(copy: Volume) -> Extent {
        let end = |end: VolumeEnd| {
            let rows = end.y.wrapping_add(end.z.wrapping_mul(end.height));
            let offset = end.x_bytes.wrapping_add(rows.wrapping_mul(end.pitch));
            End::of(end.kind, end.host, end.device, offset)
        };
        let bytes = copy.width_bytes.saturating_mul(copy.height).saturating_mul(copy.depth);
        Extent { to: end(copy.to), from: end(copy.from), bytes, is_plain: false }
    }
}

/// Passes on a copy, and records it.
pub(crate) fn copied(
    is_async: bool,
    extent: impl Into<Extent>,
    call: impl FnOnce() -> CUresult,
) -> CUresult {
    let Extent { to, from, bytes, is_plain } = extent.into();
    if bytes == 0 {
        return call();
    }
    let Some(_guard) = Guard::enter() else { return call() };
    let current = recorder::current().filter(|recorder| recorder.has_copies());
    let Some(recorder) = current else { return call() };
    let began = Instant::now();
    let code = call();
    let call_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let direction = match (to.host(), from.host()) {
        (None, None) => Some((CopyDirection::InDevice, None)),
        (None, Some(from)) => Some((CopyDirection::ToDevice, Some(from))),
        (Some(to), None) => Some((CopyDirection::ToHost, Some(to))),
        // A copy within the host.
        (Some(_), Some(_)) => None,
    };
    if let Some((direction, host)) = direction.filter(|_| code.is_success()) {
        let (memory, is_readable) = host.map_or((CopyMemory::None, false), |address| {
            memory_at(address, recorder.memory_of_copy(address))
        });
        let is_hashed = is_readable && is_plain && direction == CopyDirection::ToDevice;
        // SAFETY: the driver has just accepted this memory of the host for the copy, and the
        // program keeps it until this call returns.
        let hash = |address| unsafe { copy_sums::hash(address, bytes) };
        let hash = host.filter(|_| is_hashed).map(hash);
        let bytes = bytes as u64;
        recorder.copied(Copy { direction, memory, bytes, call_ns, is_async, hash }, &stack());
    }
    code
}

/// Returns the kind of a copy's host memory, and `true` if the host can read the memory. If the
/// memory's kind was recorded, uses that kind.
fn memory_at(address: u64, recorded: Option<CopyMemory>) -> (CopyMemory, bool) {
    if let Some(recorded) = recorded {
        // The host must not read managed memory: on some systems, the read would fault.
        return (recorded, recorded != CopyMemory::Managed);
    }
    match attribute(address, IS_MANAGED) {
        Err(CUresult::ERROR_INVALID_VALUE) => (CopyMemory::Pageable, true),
        Err(_) => (CopyMemory::Pageable, false),
        // Unrecorded managed memory is a variable of the program's kernels, or belongs to a pool.
        Ok(managed) if managed != 0 => (CopyMemory::Managed, false),
        // This memory may be mapped only for devices, so it does not count as host memory.
        Ok(_) if is_on_device(address) => (CopyMemory::None, false),
        Ok(_) => (CopyMemory::Pinned, false),
    }
}

fn is_on_device(address: u64) -> bool {
    const DEVICE: u32 = 2;
    attribute(address, MEMORY_TYPE) == Ok(DEVICE)
}

/// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE`.
const MEMORY_TYPE: i32 = 2;

/// `CU_POINTER_ATTRIBUTE_IS_MANAGED`.
const IS_MANAGED: i32 = 8;

/// Returns an attribute of an address. For pageable host memory, returns the error
/// [`ERROR_INVALID_VALUE`](CUresult::ERROR_INVALID_VALUE), because the driver does not know the
/// address.
fn attribute(address: u64, attribute: i32) -> Result<u32, CUresult> {
    // Starts at 0, because a driver may write a boolean as one byte.
    let mut found = 0_u32;
    match real::cuPointerGetAttribute((&raw mut found).cast(), attribute, address) {
        CUresult::SUCCESS => Ok(found),
        code => Err(code),
    }
}
