//! Functions for devices: the number of devices, the thread's device, peers, and pools.

use std::ffi::{c_char, c_int, c_uint, c_void};

use gpuheap_driver::{CUdevice_attribute, CUmemoryPool};

use super::entered;
use crate::call::driver;
use crate::error::{In, Out, Outcome, Text, call};
use crate::{context, kernels};

pub(crate) fn cudaGetDeviceCount(count: Out<c_int>) -> Outcome {
    call!(driver()?, cuDeviceGetCount(count))
}

pub(crate) fn cudaGetDevice(device: Out<c_int>) -> Outcome {
    let current = context::device(driver()?)?;
    device.write(current)
}

pub(crate) fn cudaSetDevice(device: c_int) -> Outcome {
    context::set_device(driver()?, device)
}

pub(crate) fn cudaInitDevice(device: c_int, _device_flags: c_uint, _flags: c_uint) -> Outcome {
    context::primary(driver()?, device).map(drop)
}

pub(crate) fn cudaChooseDevice(device: Out<c_int>, _properties: In<c_void>) -> Outcome {
    driver()?;
    device.write(0)
}

pub(crate) fn cudaSetValidDevices(devices: Out<c_int>, _count: c_int) -> Outcome {
    driver()?;
    devices.require()
}

pub(crate) fn cudaGetDeviceFlags(flags: Out<c_uint>) -> Outcome {
    let driver = driver()?;
    let device = context::device(driver)?;
    Out::local(0, |active| call!(driver, cuDevicePrimaryCtxGetState(device, flags, active))).0
}

pub(crate) fn cudaSetDeviceFlags(flags: c_uint) -> Outcome {
    let driver = driver()?;
    let device = context::device(driver)?;
    call!(driver, cuDevicePrimaryCtxSetFlags_v2(device, flags))
}

pub(crate) fn cudaDeviceGetAttribute(
    value: Out<c_int>,
    attribute: CUdevice_attribute,
    device: c_int,
) -> Outcome {
    call!(driver()?, cuDeviceGetAttribute(value, attribute, device))
}

pub(crate) fn cudaDeviceGetPCIBusId(id: Out<c_char>, length: c_int, device: c_int) -> Outcome {
    call!(driver()?, cuDeviceGetPCIBusId(id, length, device))
}

pub(crate) fn cudaDeviceGetByPCIBusId(device: Out<c_int>, id: Text) -> Outcome {
    call!(driver()?, cuDeviceGetByPCIBusId(device, id))
}

pub(crate) fn cudaDeviceReset() -> Outcome {
    let device = context::reset(driver()?)?;
    kernels::forget_variables(device);
    Ok(())
}

pub(crate) fn cudaDeviceGetCacheConfig(preference: Out<c_int>) -> Outcome {
    entered()?;
    preference.write(0)
}

pub(crate) fn cudaDeviceSetCacheConfig(_preference: c_int) -> Outcome {
    entered().map(drop)
}

pub(crate) fn cudaDeviceCanAccessPeer(can: Out<c_int>, device: c_int, peer: c_int) -> Outcome {
    call!(driver()?, cuDeviceCanAccessPeer(can, device, peer))
}

pub(crate) fn cudaDeviceEnablePeerAccess(peer: c_int, flags: c_uint) -> Outcome {
    let driver = entered()?;
    let peer = context::primary(driver, peer)?;
    call!(driver, cuCtxEnablePeerAccess(peer, flags))
}

pub(crate) fn cudaDeviceDisablePeerAccess(peer: c_int) -> Outcome {
    let driver = entered()?;
    let peer = context::primary(driver, peer)?;
    call!(driver, cuCtxDisablePeerAccess(peer))
}

pub(crate) fn cudaDeviceGetP2PAttribute(
    value: Out<c_int>,
    attribute: c_int,
    source: c_int,
    target: c_int,
) -> Outcome {
    call!(driver()?, cuDeviceGetP2PAttribute(value, attribute, source, target))
}

pub(crate) fn cudaDeviceGetDefaultMemPool(pool: Out<CUmemoryPool>, device: c_int) -> Outcome {
    call!(driver()?, cuDeviceGetDefaultMemPool(pool, device))
}

pub(crate) fn cudaDeviceGetMemPool(pool: Out<CUmemoryPool>, device: c_int) -> Outcome {
    call!(driver()?, cuDeviceGetMemPool(pool, device))
}

pub(crate) fn cudaDeviceSetMemPool(device: c_int, pool: CUmemoryPool) -> Outcome {
    call!(driver()?, cuDeviceSetMemPool(device, pool))
}
