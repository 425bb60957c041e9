//! Tests that NVML and the emulated driver in one process report the same devices.

use gpuheap_driver::{CUcontext, CUuuid, Driver, LibCuda};
use nvml_wrapper::Nvml;
use nvml_wrapper::enums::device::UsedGpuMemory;

use crate::library;

#[test]
fn nvml_shows_drivers_devices() {
    let folder = library::folder(&[&library::NVML, &library::LIBCUDA]);
    let variables = [("GPUHEAP_EMULATED_DEVICE", "t4,4GiB"), ("GPUHEAP_EMULATED_DRIVER", "12.4")];
    for name in ["driver::sees_its_own_memory", "driver::sees_idle_devices"] {
        library::run_ignored_test(name, &folder, &variables);
    }
}

/// Allocates `bytes` of memory on device 1.
pub(crate) fn take(driver: &LibCuda, bytes: usize) {
    let (mut context, mut address) = (CUcontext::NULL, 0);
    // SAFETY: the pointers are valid for writes.
    unsafe {
        assert!(driver.cuDevicePrimaryCtxRetain(&mut context, 1).is_success());
        assert!(driver.cuCtxSetCurrent(context).is_success());
        assert!(driver.cuMemAlloc_v2(&mut address, bytes).is_success());
    }
}

#[test]
#[ignore = "runs in a process of its own"]
fn sees_its_own_memory() {
    // SAFETY: the library is the emulated driver under test.
    let driver = unsafe { LibCuda::open_at("libcuda.so.1".as_ref()) }.unwrap();
    let nvml = Nvml::init().unwrap();
    assert_eq!(
        (nvml.device_count().unwrap(), nvml.sys_cuda_driver_version().unwrap()),
        (2, 12_040)
    );
    let device = nvml.device_by_index(1).unwrap();
    assert_eq!(device.running_compute_processes().unwrap().len(), 0);
    take(&driver, 1 << 30);
    let processes = device.running_compute_processes().unwrap();
    let [process] = processes.as_slice() else { panic!("{processes:?}") };
    assert_eq!(process.pid, std::process::id());
    assert!(matches!(process.used_gpu_memory, UsedGpuMemory::Used(bytes) if bytes == 1 << 30));
    let memory = device.memory_info().unwrap();
    assert_eq!((memory.total, memory.used, memory.free), (4 << 30, 1 << 30, 3 << 30));
    assert_eq!(nvml.device_by_index(0).unwrap().memory_info().unwrap().used, 0);

    let mut uuid = CUuuid { bytes: [0; 16] };
    // SAFETY: the pointer is valid for a write.
    assert!(unsafe { driver.cuDeviceGetUuid_v2(&mut uuid, 1) }.is_success());
    let digits: String = uuid.bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(device.uuid().unwrap().replace("GPU-", "").replace('-', ""), digits);
}

#[test]
#[ignore = "runs in a process of its own"]
fn sees_idle_devices() {
    let nvml = Nvml::init().unwrap();
    assert_eq!(
        (nvml.device_count().unwrap(), nvml.sys_cuda_driver_version().unwrap()),
        (2, 12_040)
    );
    let device = nvml.device_by_index(0).unwrap();
    assert_eq!(device.name().unwrap(), "emulated Tesla T4");
    assert_eq!(device.memory_info().unwrap().used, 0);
}
