//! Devices: their number, the thread's device, peers, pools.

use std::ffi::{c_char, c_int, c_uint, c_void};

use gpuheap_driver::{CUdevice_attribute, CUmemoryPool, CUresult, Driver};

use super::{entered, write};
use crate::call::driver;
use crate::error::{Outcome, check};
use crate::{context, kernels};

pub(crate) unsafe fn cudaGetDeviceCount(count: *mut c_int) -> Outcome {
    // SAFETY: the caller promises the pointer.
    check(unsafe { driver()?.cuDeviceGetCount(count) })
}

pub(crate) unsafe fn cudaGetDevice(device: *mut c_int) -> Outcome {
    let current = context::device(driver()?)?;
    // SAFETY: the caller promises the pointer.
    unsafe { write(device, current) }
}

pub(crate) unsafe fn cudaSetDevice(device: c_int) -> Outcome {
    context::set_device(driver()?, device)
}

pub(crate) unsafe fn cudaInitDevice(
    device: c_int,
    _device_flags: c_uint,
    _flags: c_uint,
) -> Outcome {
    context::primary(driver()?, device).map(drop)
}

pub(crate) unsafe fn cudaChooseDevice(device: *mut c_int, _properties: *const c_void) -> Outcome {
    driver()?;
    // SAFETY: the caller promises the pointer.
    unsafe { write(device, 0) }
}

pub(crate) unsafe fn cudaSetValidDevices(devices: *mut c_int, _count: c_int) -> Outcome {
    driver()?;
    if devices.is_null() { Err(CUresult::ERROR_INVALID_VALUE) } else { Ok(()) }
}

pub(crate) unsafe fn cudaGetDeviceFlags(flags: *mut c_uint) -> Outcome {
    let driver = driver()?;
    let (device, mut active) = (context::device(driver)?, 0);
    // SAFETY: the caller promises the pointer.
    check(unsafe { driver.cuDevicePrimaryCtxGetState(device, flags, &mut active) })
}

pub(crate) unsafe fn cudaSetDeviceFlags(flags: c_uint) -> Outcome {
    let driver = driver()?;
    let device = context::device(driver)?;
    // SAFETY: no pointers.
    check(unsafe { driver.cuDevicePrimaryCtxSetFlags_v2(device, flags) })
}

pub(crate) unsafe fn cudaDeviceGetAttribute(
    value: *mut c_int,
    attribute: CUdevice_attribute,
    device: c_int,
) -> Outcome {
    // SAFETY: the caller promises the pointer.
    check(unsafe { driver()?.cuDeviceGetAttribute(value, attribute, device) })
}

pub(crate) unsafe fn cudaDeviceGetPCIBusId(
    id: *mut c_char,
    length: c_int,
    device: c_int,
) -> Outcome {
    // SAFETY: the caller promises the pointer.
    check(unsafe { driver()?.cuDeviceGetPCIBusId(id, length, device) })
}

pub(crate) unsafe fn cudaDeviceGetByPCIBusId(device: *mut c_int, id: *const c_char) -> Outcome {
    // SAFETY: the caller promises the pointers.
    check(unsafe { driver()?.cuDeviceGetByPCIBusId(device, id) })
}

pub(crate) unsafe fn cudaDeviceReset() -> Outcome {
    let device = context::reset(driver()?)?;
    kernels::forget_variables(device);
    Ok(())
}

pub(crate) unsafe fn cudaDeviceGetCacheConfig(preference: *mut c_int) -> Outcome {
    entered()?;
    // SAFETY: the caller promises the pointer.
    unsafe { write(preference, 0) }
}

pub(crate) unsafe fn cudaDeviceSetCacheConfig(_preference: c_int) -> Outcome {
    entered().map(drop)
}

pub(crate) unsafe fn cudaDeviceCanAccessPeer(
    can: *mut c_int,
    device: c_int,
    peer: c_int,
) -> Outcome {
    // SAFETY: the caller promises the pointer.
    check(unsafe { driver()?.cuDeviceCanAccessPeer(can, device, peer) })
}

pub(crate) unsafe fn cudaDeviceEnablePeerAccess(peer: c_int, flags: c_uint) -> Outcome {
    let driver = entered()?;
    let peer = context::primary(driver, peer)?;
    // SAFETY: the context is of this driver.
    check(unsafe { driver.cuCtxEnablePeerAccess(peer, flags) })
}

pub(crate) unsafe fn cudaDeviceDisablePeerAccess(peer: c_int) -> Outcome {
    let driver = entered()?;
    let peer = context::primary(driver, peer)?;
    // SAFETY: the context is of this driver.
    check(unsafe { driver.cuCtxDisablePeerAccess(peer) })
}

pub(crate) unsafe fn cudaDeviceGetP2PAttribute(
    value: *mut c_int,
    attribute: c_int,
    source: c_int,
    target: c_int,
) -> Outcome {
    // SAFETY: the caller promises the pointer.
    check(unsafe { driver()?.cuDeviceGetP2PAttribute(value, attribute, source, target) })
}

pub(crate) unsafe fn cudaDeviceGetDefaultMemPool(
    pool: *mut CUmemoryPool,
    device: c_int,
) -> Outcome {
    // SAFETY: the caller promises the pointer.
    check(unsafe { driver()?.cuDeviceGetDefaultMemPool(pool, device) })
}

pub(crate) unsafe fn cudaDeviceGetMemPool(pool: *mut CUmemoryPool, device: c_int) -> Outcome {
    // SAFETY: the caller promises the pointer.
    check(unsafe { driver()?.cuDeviceGetMemPool(pool, device) })
}

pub(crate) unsafe fn cudaDeviceSetMemPool(device: c_int, pool: CUmemoryPool) -> Outcome {
    // SAFETY: the caller promises the handle.
    check(unsafe { driver()?.cuDeviceSetMemPool(device, pool) })
}
