//! Tests of JSON descriptions of machines, and of the figures that NVML's clients read from them.

use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::{
    Clock, EccCounter, MemoryError, PerformanceState, TemperatureSensor,
};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;

use crate::library;

const GIB: u64 = 1 << 30;

/// Describes two devices: one has all figures, and the other has few figures and failing functions.
pub(crate) const DESCRIPTION: &str = r#"{
  "driver": "570.1", "cuda": "12.8",
  "failures": {"nvmlDeviceGetEncoderUtilization": "NO_PERMISSION"},
  "devices": [
    {"name": "Test A", "uuid": "GPU-a", "pci": "00000000:3B:00.0", "minor": 4, "serial": "17",
     "compute_capability": [8, 0],
     "memory": {"total": 85899345920, "reserved": 1073741824, "unaccounted": 2147483648},
     "bar1": {"total": 137438953472, "used": 1048576},
     "processes": [
       {"pid": 1111, "bytes": 3221225472, "name": "trainer", "instance": 1},
       {"pid": 2222, "bytes": 1073741824, "list": "graphics"},
       {"pid": 3333, "bytes": null, "list": "mps"}],
     "mig": [
       {"size": "1g.10gb", "gpu_instance": 7, "memory": {"total": 10200547328}},
       {"size": "3g.40gb", "uuid": "MIG-b", "gpu_instance": 2, "compute_instance": 1,
        "memory": {"total": 42481811456, "reserved": 1048576}}],
     "utilization": {"gpu": 93, "memory": 41, "decoder": 5},
     "temperature": 66, "fan": 30, "power": {"usage": 287000, "limit": 400000},
     "clocks": {"graphics": 1410, "sm": 1400, "memory": 1512}, "max_clocks": {"sm": 1980},
     "performance_state": 2, "persistence": true, "compute_mode": "exclusive_process",
     "ecc": true, "ecc_errors": {"corrected": 5, "uncorrected": 1}, "display": true,
     "pcie": {"generation": 4, "width": 16, "sent": 1000, "received": 2000},
     "retired_pages": 3, "pages_pending": true},
    {"profile": "t4", "failures": {"nvmlDeviceGetMemoryInfo_v2": "GPU_IS_LOST"}}]
}"#;

#[test]
fn client_reads_described_devices() {
    let folder = library::folder(&[&library::NVML]);
    let file = folder.path().join("description.json");
    std::fs::write(&file, DESCRIPTION).unwrap();
    for value in [DESCRIPTION, file.to_str().unwrap()] {
        let variables = [("GPUHEAP_EMULATED_NVML", value)];
        library::run_ignored_test("description::reads_two_devices", &folder, &variables);
    }
}

#[test]
#[ignore = "runs in a process of its own"]
fn reads_two_devices() {
    let nvml = Nvml::init().unwrap();
    assert_eq!(nvml.sys_driver_version().unwrap(), "570.1");
    assert_eq!(nvml.sys_cuda_driver_version().unwrap(), 12_080);
    assert_eq!(nvml.sys_process_name(1111, 100).unwrap(), "trainer");
    assert_eq!(nvml.sys_process_name(1111, 4).unwrap(), "tra");
    assert!(matches!(nvml.sys_process_name(u32::MAX, 100), Err(NvmlError::NotFound)));
    let own = nvml.sys_process_name(std::process::id(), 4096).unwrap();
    assert_eq!(own, std::env::args().next().unwrap());

    assert_eq!(nvml.device_count().unwrap(), 2);
    assert!(matches!(nvml.device_by_index(2), Err(NvmlError::InvalidArg)));
    let device = nvml.device_by_index(0).unwrap();
    for found in [nvml.device_by_uuid("GPU-a"), nvml.device_by_pci_bus_id("0000:3b:00.0")] {
        assert_eq!(found.unwrap().index().unwrap(), 0);
    }
    assert_eq!(device.name().unwrap(), "Test A");
    assert_eq!(device.uuid().unwrap(), "GPU-a");
    assert_eq!(device.serial().unwrap(), "17");
    assert_eq!(device.minor_number().unwrap(), 4);
    assert_eq!(device.pci_info().unwrap().bus_id, "00000000:3B:00.0");
    let capability = device.cuda_compute_capability().unwrap();
    assert_eq!((capability.major, capability.minor), (8, 0));

    let memory = device.memory_info().unwrap();
    assert_eq!((memory.total, memory.reserved), (80 * GIB, GIB));
    // The processes use 4 GiB, and 2 GiB are unaccounted.
    assert_eq!((memory.used, memory.free), (6 * GIB, 73 * GIB));
    let bar1 = device.bar1_memory_info().unwrap();
    assert_eq!((bar1.total, bar1.used, bar1.free), (128 * GIB, 1 << 20, 128 * GIB - (1 << 20)));
    let compute = device.running_compute_processes().unwrap();
    assert_eq!(compute.len(), 1);
    assert_eq!((compute[0].pid, compute[0].gpu_instance_id), (1111, Some(2)));
    assert_eq!(compute[0].compute_instance_id, Some(1));
    assert!(matches!(compute[0].used_gpu_memory, UsedGpuMemory::Used(bytes) if bytes == 3 * GIB));
    let graphics = device.running_graphics_processes().unwrap();
    assert_eq!((graphics.len(), graphics[0].pid, graphics[0].gpu_instance_id), (1, 2222, None));
    let mps = device.mps_running_compute_processes().unwrap();
    assert!(matches!(mps[0].used_gpu_memory, UsedGpuMemory::Unavailable));

    let rates = device.utilization_rates().unwrap();
    assert_eq!((rates.gpu, rates.memory), (93, 41));
    assert_eq!(device.decoder_utilization().unwrap().utilization, 5);
    assert!(matches!(device.encoder_utilization(), Err(NvmlError::NoPermission)));
    assert_eq!(device.temperature(TemperatureSensor::Gpu).unwrap(), 66);
    assert_eq!(device.fan_speed(0).ok(), None);
    assert_eq!(device.power_usage().unwrap(), 287_000);
    assert_eq!(device.enforced_power_limit().unwrap(), 400_000);
    assert_eq!(device.clock_info(Clock::Graphics).unwrap(), 1410);
    assert_eq!(device.clock_info(Clock::Memory).unwrap(), 1512);
    assert!(matches!(device.clock_info(Clock::Video), Err(NvmlError::NotSupported)));
    assert_eq!(device.max_clock_info(Clock::SM).unwrap(), 1980);
    assert_eq!(device.performance_state().unwrap(), PerformanceState::Two);
    assert!(device.is_in_persistent_mode().unwrap() && device.is_display_active().unwrap());
    assert!(device.is_ecc_enabled().unwrap().currently_enabled);
    let errors = |kind| device.total_ecc_errors(kind, EccCounter::Volatile).unwrap();
    assert_eq!((errors(MemoryError::Corrected), errors(MemoryError::Uncorrected)), (5, 1));
    assert!(device.are_pages_pending_retired().unwrap());
    let cause = nvml_wrapper::enum_wrappers::device::RetirementCause::DoubleBitEccError;
    assert_eq!(device.retired_pages(cause).unwrap().len(), 3);
    assert_eq!(device.current_pcie_link_width().unwrap(), 16);
    assert!(matches!(device.numa_node_id(), Err(NvmlError::NotSupported)));

    assert_eq!(device.mig_mode().unwrap().current, 1);
    assert_eq!(device.mig_device_count().unwrap(), 7);
    let instance = device.mig_device_by_index(1).unwrap();
    assert_eq!(instance.uuid().unwrap(), "MIG-b");
    assert_eq!(instance.name().unwrap(), "Test A MIG 3g.40gb");
    assert_eq!(instance.memory_info().unwrap().used, 3 * GIB);
    assert_eq!(instance.running_compute_processes().unwrap().len(), 1);
    let empty = device.mig_device_by_index(0).unwrap();
    assert_eq!(empty.memory_info().unwrap().used, 0);
    assert_eq!(empty.running_compute_processes().unwrap().len(), 0);
    assert!(matches!(empty.utilization_rates(), Err(NvmlError::NotSupported)));
    assert!(matches!(device.mig_device_by_index(2), Err(NvmlError::NotFound)));

    let lost = nvml.device_by_index(1).unwrap();
    assert_eq!(lost.name().unwrap(), "emulated Tesla T4");
    assert!(matches!(lost.memory_info(), Err(NvmlError::GpuLost)));
    assert!(matches!(lost.temperature(TemperatureSensor::Gpu), Err(NvmlError::NotSupported)));
    assert!(matches!(lost.mig_mode(), Err(NvmlError::NotSupported)));
    assert!(!lost.is_in_persistent_mode().unwrap());
}

#[test]
fn wrong_setting_is_one_line_error() {
    let folder = library::folder(&[&library::NVML]);
    for (name, value, told) in [
        ("GPUHEAP_EMULATED_NVML", "{\"devices\": [{}]}", "give memory.total"),
        ("GPUHEAP_EMULATED_NVML", "{\"failures\": {\"nvmlX\": \"TIMEOUT\"}}", "\"nvmlX\" is no"),
        ("GPUHEAP_EMULATED_NVML", "/no/such/file", "cannot be read"),
        ("GPUHEAP_EMULATED_DEVICE", "h2000", "rtx4090"),
        ("GPUHEAP_EMULATED_DRIVER", "new", "13.0"),
        ("GPUHEAP_EMULATED_ACCOUNT", "/proc/version", "is no account"),
    ] {
        let variables = [(name, value)];
        let stderr = library::stderr_of("description::is_refused", &folder, &variables);
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        assert!(stderr.starts_with("gpuheap: nvml: ") && stderr.contains(told), "{stderr}");
    }
}

#[test]
#[ignore = "runs in a process of its own"]
fn is_refused() {
    assert!(matches!(Nvml::init(), Err(NvmlError::InvalidArg)));
}

#[test]
fn initialisation_fails_as_described() {
    let folder = library::folder(&[&library::NVML]);
    let description = "{\"failures\": {\"nvmlInit_v2\": \"LIB_RM_VERSION_MISMATCH\"}}";
    let variables = [("GPUHEAP_EMULATED_NVML", description)];
    library::run_ignored_test("description::differs_in_version", &folder, &variables);
}

#[test]
#[ignore = "runs in a process of its own"]
fn differs_in_version() {
    assert!(matches!(Nvml::init(), Err(NvmlError::LibRmVersionMismatch)));
}
