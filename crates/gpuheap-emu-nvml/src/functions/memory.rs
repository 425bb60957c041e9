//! Functions for device memory, and for the processes that use it.

use std::ffi::c_uint;

use crate::args::{Handle, Out, write_list};
use crate::code::{Code, Outcome, fail_if};
use crate::description::List;
use crate::library::{Nvml, Target};
use crate::machine::Row;
use crate::types::{Bar1Memory, MemoryV1, MemoryV2, ProcessInfo, ProcessInfoV2};

/// Byte count that means "unknown".
const UNKNOWN_BYTES: u64 = u64::MAX;

/// Instance number of a process that uses no instance.
const NO_INSTANCE: c_uint = c_uint::MAX;

/// Exports the functions that list processes.
macro_rules! lists {
    (processes { $($list:ident: $v1:ident $v2:ident $v3:ident;)* } $($rest:tt)*) => {
        functions! {
            $(fn $v1(nvml, device: Handle, count: Out<c_uint>, infos: Out<ProcessInfo>) {
                list(nvml, device, List::$list, count, infos)
            }

            fn $v2 | $v3(nvml, device: Handle, count: Out<c_uint>, infos: Out<ProcessInfoV2>) {
                list(nvml, device, List::$list, count, infos)
            })*

            $($rest)*
        }
    };
}

lists! {
    processes {
        Compute: nvmlDeviceGetComputeRunningProcesses nvmlDeviceGetComputeRunningProcesses_v2
            nvmlDeviceGetComputeRunningProcesses_v3;
        Graphics: nvmlDeviceGetGraphicsRunningProcesses nvmlDeviceGetGraphicsRunningProcesses_v2
            nvmlDeviceGetGraphicsRunningProcesses_v3;
        Mps: nvmlDeviceGetMPSComputeRunningProcesses nvmlDeviceGetMPSComputeRunningProcesses_v2
            nvmlDeviceGetMPSComputeRunningProcesses_v3;
    }

    fn nvmlDeviceGetMemoryInfo(nvml, device: Handle, info: Out<MemoryV1>) {
        let MemoryV2 { total, free, .. } = memory(&nvml.target(device)?);
        info.write(MemoryV1 { total, free, used: total - free })
    }

    fn nvmlDeviceGetMemoryInfo_v2(nvml, device: Handle, info: Out<MemoryV2>) {
        let target = nvml.target(device)?;
        fail_if(info.get()?.version != MemoryV2::VERSION, Code::ARGUMENT_VERSION_MISMATCH)?;
        info.write(memory(&target))
    }

    fn nvmlDeviceGetBAR1MemoryInfo(nvml, device: Handle, info: Out<Bar1Memory>) {
        let target = nvml.target(device)?;
        let own = target.instance.and_then(|(_, instance)| instance.bar1);
        let found = own.or(target.device.bar1).ok_or(Code::NOT_SUPPORTED)?;
        let used = found.used.min(found.total);
        info.write(Bar1Memory { total: found.total, free: found.total - used, used })
    }

    // Returns no samples, as for a device that has run nothing since `_since`.
    fn nvmlDeviceGetProcessUtilization(
        nvml, device: Handle, _samples: Out<u8>, count: Out<c_uint>, _since: u64
    ) {
        nvml.device(device)?;
        count.write(0)?;
        Err(Code::NOT_FOUND)
    }
}

/// Returns the memory figures of a device or an instance. The used memory includes the memory of
/// all listed processes.
fn memory(target: &Target<'_>) -> MemoryV2 {
    let memory = target.instance.map_or(&target.device.memory, |(_, instance)| &instance.memory);
    let rows = target.rows();
    let listed = rows.iter().filter_map(|row| row.bytes).fold(0, u64::saturating_add);
    let reserved = memory.reserved.min(memory.total);
    let used = listed.saturating_add(memory.unaccounted).min(memory.total - reserved);
    MemoryV2 {
        version: MemoryV2::VERSION,
        total: memory.total,
        reserved,
        free: memory.total - reserved - used,
        used,
    }
}

/// Structure in which one version of NVML's process lists describes a process.
trait Layout: Copy {
    fn from_row(row: &Row, instance: (c_uint, c_uint)) -> Self;
}

impl Layout for ProcessInfo {
    fn from_row(row: &Row, _: (c_uint, c_uint)) -> ProcessInfo {
        ProcessInfo { pid: row.pid, bytes: row.bytes.unwrap_or(UNKNOWN_BYTES) }
    }
}

impl Layout for ProcessInfoV2 {
    fn from_row(row: &Row, (gpu_instance, compute_instance): (c_uint, c_uint)) -> ProcessInfoV2 {
        let bytes = row.bytes.unwrap_or(UNKNOWN_BYTES);
        ProcessInfoV2 { pid: row.pid, bytes, gpu_instance, compute_instance }
    }
}

/// Writes one of the lists of processes.
fn list<T: Layout>(
    nvml: &Nvml,
    device: Handle,
    list: List,
    count: Out<c_uint>,
    infos: Out<T>,
) -> Outcome {
    let target = nvml.target(device)?;
    let instances = target.device.mig.as_deref().unwrap_or_default();
    let instance = |row: &Row| {
        let found = row.instance.and_then(|at| instances.get(at));
        found.map_or((NO_INSTANCE, NO_INSTANCE), |one| (one.gpu_instance, one.compute_instance))
    };
    let rows = target.rows();
    let rows = rows.iter().filter(|row| row.list == list);
    let infos_of: Vec<T> = rows.map(|row| T::from_row(row, instance(row))).collect();
    write_list(infos, count, &infos_of)
}
