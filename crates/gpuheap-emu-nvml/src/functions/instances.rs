//! Functions for MIG instances.

use std::ffi::c_uint;

use crate::args::{Handle, Out, write_if_known};
use crate::code::{Code, fail_if};

/// Maximum number of instances of a device, according to NVIDIA's documentation of MIG.
const INSTANCES: c_uint = 7;

functions! {
    figures {
        nvmlDeviceGetMaxMigDeviceCount: |device| device.mig.as_ref().map(|_| INSTANCES);
    }

    fn nvmlDeviceGetMigMode(nvml, device: Handle, current: Out<c_uint>, pending: Out<c_uint>) {
        let mode = nvml.device(device)?.mig.as_ref().map(|found| c_uint::from(!found.is_empty()));
        write_if_known(current, mode)?;
        write_if_known(pending, mode)
    }

    fn nvmlDeviceIsMigDeviceHandle(nvml, device: Handle, is_instance: Out<c_uint>) {
        is_instance.write(c_uint::from(nvml.target(device)?.instance.is_some()))
    }

    fn nvmlDeviceGetMigDeviceHandleByIndex(
        nvml, device: Handle, index: c_uint, instance: Out<Handle>
    ) {
        let target = nvml.target(device)?;
        let found = target.device.mig.as_ref().ok_or(Code::NOT_SUPPORTED)?;
        fail_if(target.instance.is_some(), Code::INVALID_ARGUMENT)?;
        let at = index as usize;
        found.get(at).ok_or(Code::NOT_FOUND)?;
        instance.write(Handle::new(target.index, Some(at)))
    }

    fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(
        nvml, instance: Handle, device: Out<Handle>
    ) {
        let target = nvml.target(instance)?;
        target.instance.ok_or(Code::INVALID_ARGUMENT)?;
        device.write(Handle::new(target.index, None))
    }

    fn nvmlDeviceGetGpuInstanceId(nvml, instance: Handle, id: Out<c_uint>) {
        let target = nvml.target(instance)?;
        write_if_known(id, target.instance.map(|(_, found)| found.gpu_instance))
    }

    fn nvmlDeviceGetComputeInstanceId(nvml, instance: Handle, id: Out<c_uint>) {
        let target = nvml.target(instance)?;
        write_if_known(id, target.instance.map(|(_, found)| found.compute_instance))
    }
}
