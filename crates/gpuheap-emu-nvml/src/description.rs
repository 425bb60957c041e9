//! JSON description of a machine's devices. All sizes are in bytes.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::code::Code;

/// Codes with which functions fail, keyed by function name.
pub(crate) type Failures = BTreeMap<String, Code>;

/// Description of a machine. If a field is missing, its default applies, or the figure is
/// unsupported.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Description {
    /// Version of the driver.
    pub(crate) driver: Option<String>,
    /// Version of CUDA that the driver supports, such as `13.0`.
    pub(crate) cuda: Option<String>,
    /// Functions that fail on every device.
    pub(crate) failures: Failures,
    /// Devices; `None` to use the devices of the emulated driver or of the environment.
    pub(crate) devices: Option<Vec<Device>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Device {
    /// Emulated device, such as `h200` or `16GiB`. Supplies the name, memory, capability and clocks
    /// if the description lacks them.
    pub(crate) profile: Option<String>,
    pub(crate) name: Option<String>,
    /// UUID, `GPU-…`.
    pub(crate) uuid: Option<String>,
    /// Address on the PCI bus, `00000000:01:00.0`.
    pub(crate) pci: Option<String>,
    /// The number N of the device file `/dev/nvidiaN`.
    pub(crate) minor: Option<u32>,
    pub(crate) serial: Option<String>,
    /// Compute capability, major and minor.
    pub(crate) compute_capability: Option<(i32, i32)>,
    pub(crate) memory: Memory,
    pub(crate) bar1: Option<Bar1>,
    pub(crate) processes: Vec<Process>,
    /// MIG instances; empty if MIG is off, `None` if the device has no MIG.
    pub(crate) mig: Option<Vec<Instance>>,
    pub(crate) utilization: Utilization,
    /// Temperature, degrees Celsius.
    pub(crate) temperature: Option<u32>,
    /// Speed of the fan, percent of full speed.
    pub(crate) fan: Option<u32>,
    pub(crate) power: Power,
    pub(crate) clocks: Clocks,
    pub(crate) max_clocks: Clocks,
    /// Performance state: 0 is the fastest, 15 is the slowest.
    pub(crate) performance_state: Option<u32>,
    pub(crate) persistence: Option<bool>,
    pub(crate) compute_mode: Option<ComputeMode>,
    /// `true` if memory errors are corrected.
    pub(crate) ecc: Option<bool>,
    pub(crate) ecc_errors: Option<EccErrors>,
    /// `true` if a screen shows the device's output.
    pub(crate) display: Option<bool>,
    pub(crate) numa_node: Option<u32>,
    pub(crate) pcie: Pcie,
    /// Number of pages that were retired for two-bit errors.
    pub(crate) retired_pages: Option<u32>,
    /// `true` if the next reset will retire pages.
    pub(crate) pages_pending: Option<bool>,
    /// Functions that fail on this device.
    pub(crate) failures: Failures,
}

/// Memory of a device or an instance. The memory in use is the sum of the processes' memory and
/// `unaccounted`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Memory {
    pub(crate) total: u64,
    /// Memory in use that belongs to no listed process.
    pub(crate) reserved: u64,
    /// Memory in use by no listed process.
    pub(crate) unaccounted: u64,
}

/// BAR1, the window through which PCIe accesses device memory.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Bar1 {
    pub(crate) total: u64,
    pub(crate) used: u64,
}

/// Process in one of NVML's lists. The process need not exist.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// Memory that the process uses, in bytes; `None` if the driver reports none, as under WSL2.
    pub(crate) bytes: Option<u64>,
    #[serde(default)]
    pub(crate) list: List,
    /// Result of `nvmlSystemGetProcessName`; `None` to use the name in `/proc`.
    #[serde(default)]
    pub(crate) name: Option<String>,
    /// Index in [`Device::mig`] of the instance that the process uses.
    #[serde(default)]
    pub(crate) instance: Option<usize>,
}

/// NVML's lists of processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum List {
    #[default]
    Compute,
    Graphics,
    Mps,
}

/// MIG instance of a device.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Instance {
    /// Size of the instance in NVIDIA's notation, such as `1g.18gb`.
    pub(crate) size: String,
    /// UUID, `MIG-…`; `None` to generate one.
    #[serde(default)]
    pub(crate) uuid: Option<String>,
    pub(crate) gpu_instance: u32,
    #[serde(default)]
    pub(crate) compute_instance: u32,
    pub(crate) memory: Memory,
    /// BAR1 figures of the instance; `None` to use the device's figures.
    #[serde(default)]
    pub(crate) bar1: Option<Bar1>,
}

/// Utilisation of the device's units. Each value is the percentage of the last sampling period
/// during which the unit was busy.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Utilization {
    pub(crate) gpu: Option<u32>,
    pub(crate) memory: Option<u32>,
    pub(crate) encoder: Option<u32>,
    pub(crate) decoder: Option<u32>,
}

/// Power, milliwatts.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Power {
    pub(crate) usage: Option<u32>,
    pub(crate) limit: Option<u32>,
}

/// Clocks, MHz.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Clocks {
    pub(crate) graphics: Option<u32>,
    pub(crate) sm: Option<u32>,
    pub(crate) memory: Option<u32>,
    pub(crate) video: Option<u32>,
}

/// Restriction on the processes that may use the device. The values match `nvmlComputeMode_t`.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ComputeMode {
    Default = 0,
    ExclusiveThread = 1,
    Prohibited = 2,
    ExclusiveProcess = 3,
}

/// Counts of memory errors since the driver was loaded.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EccErrors {
    pub(crate) corrected: u64,
    pub(crate) uncorrected: u64,
}

/// PCIe link to the host.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Pcie {
    pub(crate) generation: Option<u32>,
    pub(crate) width: Option<u32>,
    /// Data sent by the device, KiB/s.
    pub(crate) sent: Option<u32>,
    /// Data received by the device, KiB/s.
    pub(crate) received: Option<u32>,
}
