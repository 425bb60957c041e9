//! `gpuheap probe-cuda`: the process that `gpuheap doctor --probe-cuda` starts.

use std::ffi::OsStr;
use std::path::Path;

use gpuheap::driver::probe::{self, PinnedMemory, Probe, ProbeError};
use gpuheap::driver::{DriverError, LibCuda, OpenError};
use gpuheap_doctor::machine::{CudaProbe, Outcome, PROBES};
use gpuheap_doctor::{Here, Machine, Source};
use gpuheap_text::mib;

use crate::exit::{Failure, Verdict};
use crate::output;

/// Name of the command. `--help` does not show it.
const NAME: &str = "probe-cuda";

/// Returns the command that starts a probe: this program, or `python -m gpuheap`.
pub(crate) fn command() -> Result<Vec<String>, Failure> {
    let program = std::env::current_exe().map_err(|error| {
        Failure::environment_error(format!("--probe-cuda: the path of this program: {error}"))
    })?;
    Ok(command_for(&program, std::env::args_os().next().as_deref()))
}

/// Returns the command that starts a probe of CUDA: `program` itself, or `-m gpuheap` of a Python
/// `program`. `started_as` is the name with which `program` was started. A virtual environment's
/// Python is a link, and finds its environment only if it is started by the link's name.
fn command_for(program: &Path, started_as: Option<&OsStr>) -> Vec<String> {
    let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let text = |part: &OsStr| part.to_string_lossy().into_owned();
    if name.starts_with("python") {
        let interpreter = text(started_as.unwrap_or(program.as_os_str()));
        return vec![interpreter, "-m".to_owned(), "gpuheap".to_owned(), NAME.to_owned()];
    }
    vec![text(program.as_os_str()), NAME.to_owned()]
}

/// Probes every device that CUDA shows. Writes a line before each probe and a line after it.
pub(crate) fn run() -> Result<Verdict, Failure> {
    print_start(None, "driver")?;
    let driver = match LibCuda::open() {
        Ok(driver) => driver,
        Err(error) => {
            let is_missing = matches!(error, OpenError::NotFound { .. });
            let outcome = if is_missing { Outcome::Skipped } else { Outcome::Failed };
            return print_result(CudaProbe::new(None, "driver", outcome, error.to_string()));
        }
    };
    let version = format!("CUDA {}.{}", driver.version() / 1000, driver.version() % 1000 / 10);
    let devices = match probe::devices(&driver) {
        Ok(devices) => devices,
        Err(error) => return print_result(failed(None, "driver", error)),
    };
    print_result(CudaProbe::new(None, "driver", Outcome::Ok, version))?;
    for ordinal in 0..devices {
        probe_device(&driver, ordinal)?;
    }
    Ok(Verdict::Fine)
}

/// Probes one device. For the first device, also probes the memory of the host.
fn probe_device(driver: &LibCuda, ordinal: i32) -> Result<(), Failure> {
    let uuid = match probe::uuid(driver, ordinal) {
        Ok(uuid) => uuid,
        Err(error) => return print_result(failed(None, "driver", error)).map(drop),
    };
    let uuid = Some(uuid.as_str());
    let [context, virtual_memory, pool, managed_memory] = PROBES;
    print_start(uuid, context)?;
    let probe = match Probe::new(driver, ordinal) {
        Ok(probe) => probe,
        Err(error) => return print_result(failed(uuid, context, error)).map(drop),
    };
    print_result(context_size(&probe, uuid))?;

    print_start(uuid, virtual_memory)?;
    print_result(result(
        uuid,
        virtual_memory,
        probe.virtual_memory().map(|found| {
            let addresses = match found.reserved {
                0 => "64 GiB of addresses refused".to_owned(),
                bytes => format!("reserves {} GiB at once", bytes >> 30),
            };
            format!("works, pages of {}; {addresses}", mib(found.granularity))
        }),
    ))?;
    print_start(uuid, pool)?;
    print_result(result(uuid, pool, probe.pool().map(|()| "works".to_owned())))?;
    print_start(uuid, managed_memory)?;
    print_result(result(
        uuid,
        managed_memory,
        probe.managed_memory().map(|is_concurrent| {
            let use_of_it = if is_concurrent { "at one time" } else { "in turns" };
            format!("works; host and device may use it {use_of_it}")
        }),
    ))?;
    if ordinal == 0 {
        print_start(None, PINNED)?;
        print_result(pin_memory(&probe))?;
    }
    Ok(())
}

const PINNED: &str = "pinned memory";

/// Returns the size of the context: the bytes that NVML reports for this process. If NVML does not
/// list this process and no other process uses the device, returns the bytes in use on the device.
fn context_size(probe: &Probe<'_>, uuid: Option<&str>) -> CudaProbe {
    let own = std::process::id();
    let nvml = Here.nvml().ok();
    let device = nvml.iter().flat_map(|nvml| &nvml.devices);
    let mut device = device.filter(|gpu| Some(gpu.uuid.as_str()) == uuid);
    let processes = device.next().map_or(&[][..], |gpu| &gpu.processes);
    let listed = processes.iter().find(|listed| listed.pid == own).and_then(|own| own.bytes);
    let bytes = listed.or_else(|| {
        let is_alone = processes.iter().all(|listed| listed.pid == own);
        probe.used_bytes().ok().filter(|_| is_alone)
    });
    let text = match bytes {
        Some(bytes) => format!("{} MiB of the device", (bytes + (1 << 19)) >> 20),
        None => "works; the driver does not tell its size".to_owned(),
    };
    CudaProbe { bytes, ..CudaProbe::new(uuid, PROBES[0], Outcome::Ok, text) }
}

/// Maximum number of bytes that are pinned.
const MOST_PINNED: u64 = 2 << 30;

/// Pins at most a quarter of the memory that is available on the host, because other programs need
/// the rest.
fn pin_memory(probe: &Probe<'_>) -> CudaProbe {
    let left = Machine::read(Here).host.available.min(left_by_groups());
    let most = MOST_PINNED.min(left / 4);
    if most < MOST_PINNED / 8 {
        let text = format!("the host leaves this process {}", mib(left));
        return CudaProbe::new(None, PINNED, Outcome::Skipped, text);
    }
    match probe.pinned_memory(most) {
        Err(error) => failed(None, PINNED, error),
        Ok(PinnedMemory { bytes, refused: Some(error) }) => {
            CudaProbe { bytes: Some(bytes), ..failed(None, PINNED, error) }
        }
        Ok(PinnedMemory { bytes, refused: None }) => {
            let text = format!("{} in steps of 128 MiB", mib(bytes));
            CudaProbe { bytes: Some(bytes), ..CudaProbe::new(None, PINNED, Outcome::Ok, text) }
        }
    }
}

/// Returns the bytes that this process may still use under the limits of its control groups;
/// `u64::MAX` without a limit. Pinning more would make the kernel kill a process of the group.
fn left_by_groups() -> u64 {
    let number = |path: String| Here.read_text(&path).trim().parse::<u64>().ok();
    let groups = Here.read_text("/proc/self/cgroup");
    let mut left = u64::MAX;
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(kinds), Some(path)) = (fields.next(), fields.next()) else { continue };
        let (root, limit, used) = match kinds {
            "" => ("/sys/fs/cgroup", "memory.max", "memory.current"),
            _ if kinds.split(',').any(|kind| kind == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes")
            }
            _ => continue,
        };
        // In a container, the path of the process's control group may exist only on the host. Then
        // only the last ancestor, the root of all control groups, can be read.
        for group in Path::new(path).ancestors() {
            let folder = format!("{root}{}", group.display().to_string().trim_end_matches('/'));
            let limit = number(format!("{folder}/{limit}"));
            let used = number(format!("{folder}/{used}"));
            if let (Some(limit), Some(used)) = (limit, used) {
                left = left.min(limit.saturating_sub(used));
            }
        }
    }
    left
}

fn result(uuid: Option<&str>, name: &str, result: Result<String, ProbeError>) -> CudaProbe {
    match result {
        Ok(text) => CudaProbe::new(uuid, name, Outcome::Ok, text),
        Err(error @ ProbeError::NotSupported(_)) => {
            CudaProbe::new(uuid, name, Outcome::Skipped, error.to_string())
        }
        Err(ProbeError::Failed(error)) => failed(uuid, name, error),
    }
}

fn failed(uuid: Option<&str>, name: &str, error: DriverError) -> CudaProbe {
    CudaProbe::new(uuid, name, Outcome::Failed, error.to_string())
}

fn print_start(uuid: Option<&str>, name: &str) -> Result<(), Failure> {
    output::print(&CudaProbe::new(uuid, name, Outcome::Started, "").to_line())
}

fn print_result(probe: CudaProbe) -> Result<Verdict, Failure> {
    output::print(&probe.to_line()).map(|()| Verdict::Fine)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn python_package_probes_with_own_interpreter() {
        let started_as = Some(OsStr::new("/home/ann/venv/bin/python"));
        let command = command_for(Path::new("/usr/bin/python3.12"), started_as);
        assert_eq!(command, ["/home/ann/venv/bin/python", "-m", "gpuheap", "probe-cuda"]);
        let command = command_for(Path::new("/usr/bin/gpuheap"), Some(OsStr::new("gpuheap")));
        assert_eq!(command, ["/usr/bin/gpuheap", "probe-cuda"]);
    }
}
