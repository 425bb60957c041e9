//! Metrics of devices and processes.

use std::collections::BTreeMap;

use gpuheap_doctor::Machine;
use gpuheap_doctor::machine::{Gpu, Kind, Process};
use gpuheap_doctor::status::Account;
use gpuheap_text::cut;

use super::metric::Metric;
use super::samples::{Labels, Samples, and};

/// Maximum number of processes per device that have a separate sample. The sample `other` is the
/// sum of the rest. 32 processes on 8 devices are 256 series.
const MOST_PROCESSES: usize = 32;

pub(super) fn add(samples: &mut Samples, machine: &Machine) {
    let nvml = machine.nvml.as_ref().ok().filter(|nvml| nvml.failure.is_none());
    samples.add(Metric::DriverUp, Labels::new(), u64::from(nvml.is_some()));
    if let Some(nvml) = nvml {
        samples.add(Metric::Driver, vec![("version", cut(&nvml.driver, 32))], 1);
    }
    for gpu in machine.devices() {
        let device = vec![("gpu", gpu.index.to_string()), ("uuid", cut(&gpu.uuid, 64))];
        samples.add(Metric::Device, and(&device, [("name", cut(&gpu.name, 64))]), 1);
        samples.add(Metric::DeviceUp, device.clone(), u64::from(gpu.failure.is_none()));
        if gpu.failure.is_none() {
            add_device(samples, machine, gpu, &device);
        }
    }
}

fn add_device(samples: &mut Samples, machine: &Machine, gpu: &Gpu, device: &Labels) {
    let account = Account::new(machine, gpu);
    let state = |state: &str| and(device, [("state", state.to_owned())]);
    samples.add(Metric::DeviceMemory, state("used"), account.used_bytes);
    samples.add(Metric::DeviceMemory, state("free"), account.free_bytes);
    if let Some(bytes) = account.reserved_bytes {
        samples.add(Metric::DeviceMemory, state("reserved"), bytes);
    }
    if account.processes_without_figure == 0 {
        samples.add_signed(Metric::DeviceUnaccounted, device.clone(), account.unaccounted_bytes);
    }
    if let (Some(total), Some(used)) = (gpu.bar1_total, gpu.bar1_used) {
        samples.add(Metric::Bar1, state("used"), used);
        samples.add(Metric::Bar1, state("free"), total.saturating_sub(used));
    }
    for (class, count) in holders(machine, gpu) {
        samples.add(Metric::Holders, and(device, [("class", class.to_owned())]), count);
    }
    let with_figure = account.processes.iter().filter_map(|row| Some((row, row.bytes?)));
    for (number, (row, bytes)) in with_figure.enumerate() {
        if number >= MOST_PROCESSES {
            let names = ["pid", "comm", "user", "container", "kind"];
            let other = names.map(|name| (name, "other".to_owned()));
            samples.add(Metric::ProcessMemory, and(device, other), bytes);
            samples.add(Metric::LeftOut, vec![("kind", "processes".to_owned())], 1);
            continue;
        }
        let comm = machine.process(row.pid).map(|process| process.comm.as_str());
        let labels = [
            ("pid", row.pid.to_string()),
            // The kernel cuts a process's name at 15 bytes.
            ("comm", cut(comm.unwrap_or_default(), 15)),
            ("user", cut(row.user.as_deref().unwrap_or_default(), 32)),
            ("container", row.container.clone().unwrap_or_default()),
            ("kind", kind(row.kind).to_owned()),
        ];
        samples.add(Metric::ProcessMemory, and(device, labels), bytes);
    }
}

fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Compute => "compute",
        Kind::Graphics => "graphics",
        Kind::Mps => "mps",
    }
}

/// Returns the number of processes of each class on a device.
fn holders(machine: &Machine, gpu: &Gpu) -> BTreeMap<&'static str, u64> {
    let classes = ["compute", "graphics", "mps", "inherited", "monitor", "unlisted"];
    let mut counts = BTreeMap::from(classes.map(|class| (class, 0)));
    // A CUDA process opens the files of all visible devices, but may use memory on only a few. So
    // if the driver lists a process for one device, its open files of other devices do not count.
    let is_unlisted =
        |process: &&Process| !machine.is_listed(process.pid) && process.has_open(gpu.minor);
    let unlisted = machine.processes.iter().filter(is_unlisted).map(|process| {
        if process.only_inherited() {
            "inherited"
        } else if process.only_watches() {
            "monitor"
        } else {
            "unlisted"
        }
    });
    for class in gpu.processes.iter().map(|listed| kind(listed.kind)).chain(unlisted) {
        *counts.entry(class).or_default() += 1;
    }
    counts
}
