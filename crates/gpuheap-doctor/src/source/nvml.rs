//! Reads the facts of NVML in one pass.

use std::sync::mpsc::{Sender, channel};
use std::thread;

use nvml_wrapper::enum_wrappers::device::RetirementCause;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper::{Device, Nvml as Library};

use crate::facts::{Gpu, Kind, Listed, Nvml, NvmlFailure, Skipped, Why};

/// Paths of NVML. Under WSL2, the library is outside of the linker's folders.
const PLACES: [&str; 2] = ["libnvidia-ml.so.1", "/usr/lib/wsl/lib/libnvidia-ml.so.1"];

/// Guard that keeps NVML initialised. Without the guard, each read of [`Here`](super::Here)
/// initialises the devices. This takes seconds on a card without persistence mode.
pub struct KeptNvml(#[expect(dead_code, reason = "its drop ends the thread")] Sender<()>);

/// Initialises NVML on a thread. The thread ends when the result is dropped.
pub(super) fn keep_loaded() -> KeptNvml {
    let (kept, end) = channel();
    let work = move || {
        // Hangs if the driver hangs.
        let open = |place: &str| Library::builder().lib_path(place.as_ref()).init().ok();
        let _library = PLACES.into_iter().find_map(open);
        // `recv` fails once the result of `keep_loaded` is dropped.
        let _ = end.recv();
    };
    // Without the thread, each read initialises NVML.
    let _ = thread::Builder::new().name("gpuheap-nvml".to_owned()).spawn(work);
    KeptNvml(kept)
}

/// Loads NVML and reads all facts.
pub(super) fn query() -> Result<Nvml, Skipped> {
    let mut missing = None;
    for place in PLACES {
        match Library::builder().lib_path(place.as_ref()).init() {
            Ok(library) => return Ok(read(&library)),
            Err(NvmlError::LibloadingError(error)) => {
                missing.get_or_insert_with(|| Skipped::new(Why::Missing, error.to_string()));
            }
            Err(error) => {
                return Ok(Nvml { failure: Some(failure(&error)), ..Nvml::default() });
            }
        }
    }
    Err(missing.unwrap_or_else(|| Skipped::new(Why::Missing, PLACES[0])))
}

fn read(library: &Library) -> Nvml {
    let count = match library.device_count() {
        Ok(count) => count,
        Err(error) => return Nvml { failure: Some(failure(&error)), ..Nvml::default() },
    };
    Nvml {
        driver: library.sys_driver_version().unwrap_or_default(),
        cuda: library.sys_cuda_driver_version().unwrap_or_default(),
        failure: None,
        devices: (0..count)
            .map(|index| match library.device_by_index(index) {
                Ok(device) => gpu(index, &device),
                Err(error) => Gpu { index, failure: Some(failure(&error)), ..Gpu::default() },
            })
            .collect(),
    }
}

fn gpu(index: u32, device: &Device<'_>) -> Gpu {
    let mut gpu = Gpu {
        index,
        name: device.name().unwrap_or_default(),
        uuid: device.uuid().unwrap_or_default(),
        minor: device.minor_number().ok(),
        pci: device.pci_info().map(|pci| pci.bus_id).unwrap_or_default(),
        ..Gpu::default()
    };
    match device.memory_info() {
        Ok(memory) => {
            gpu.total = memory.total;
            gpu.used = memory.used;
            gpu.free = memory.free;
            gpu.reserved = Some(memory.reserved);
        }
        Err(error) => gpu.failure = Some(failure(&error)),
    }
    let compute = device.running_compute_processes();
    gpu.processes_failure = compute.as_ref().err().map(failure);
    list(&mut gpu, Kind::Compute, compute);
    list(&mut gpu, Kind::Graphics, device.running_graphics_processes());
    list(&mut gpu, Kind::Mps, device.mps_running_compute_processes());
    if let Ok(bar1) = device.bar1_memory_info() {
        gpu.bar1_total = Some(bar1.total);
        gpu.bar1_used = Some(bar1.used);
    }
    gpu.ecc = device.is_ecc_enabled().ok().map(|ecc| ecc.currently_enabled);
    gpu.mig = device.mig_mode().ok().map(|mode| mode.current == 1);
    if gpu.mig == Some(true) {
        let count = device.mig_device_count().unwrap_or(0);
        for instance in (0..count).filter_map(|index| device.mig_device_by_index(index).ok()) {
            list(&mut gpu, Kind::Compute, instance.running_compute_processes());
        }
    }
    gpu.persistence = device.is_in_persistent_mode().ok();
    gpu.display = device.is_display_active().ok();
    gpu.numa_node = device.numa_node_id().ok();
    gpu.virtualization = device.virtualization_mode().ok().map(|mode| format!("{mode:?}"));
    gpu.confidential = device.is_cc_enabled().ok();
    gpu.pages_pending = device.are_pages_pending_retired().ok();
    gpu.retired_pages = device
        .retired_pages(RetirementCause::DoubleBitEccError)
        .ok()
        .map(|pages| pages.len() as u32);
    gpu.utilization = device.utilization_rates().ok().map(|rates| rates.gpu);
    gpu
}

/// Adds the processes of one of NVML's lists. A process that is listed twice keeps its larger
/// figure.
fn list(gpu: &mut Gpu, kind: Kind, processes: Result<Vec<ProcessInfo>, NvmlError>) {
    for process in processes.unwrap_or_default() {
        let bytes = match process.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(bytes),
            UsedGpuMemory::Unavailable => None,
        };
        match gpu.processes.iter_mut().find(|listed| listed.pid == process.pid) {
            Some(listed) => listed.bytes = listed.bytes.max(bytes),
            None => gpu.processes.push(Listed { pid: process.pid, bytes, kind }),
        }
    }
}

/// Returns the number and text of an error. Rules need the numbers of `nvmlReturn_t`. In these, 999
/// stands for an unknown error.
fn failure(error: &NvmlError) -> NvmlFailure {
    let code = match error {
        NvmlError::Uninitialized => 1,
        NvmlError::InvalidArg => 2,
        NvmlError::NotSupported => 3,
        NvmlError::NoPermission => 4,
        NvmlError::NotFound => 6,
        NvmlError::DriverNotLoaded => 9,
        NvmlError::Timeout => 10,
        NvmlError::FailedToLoadSymbol(_) => 13,
        NvmlError::GpuLost => 15,
        NvmlError::ResetRequired => 16,
        NvmlError::OperatingSystem => 17,
        NvmlError::LibRmVersionMismatch => 18,
        NvmlError::InUse => 19,
        _ => 999,
    };
    NvmlFailure { code, text: error.to_string() }
}
