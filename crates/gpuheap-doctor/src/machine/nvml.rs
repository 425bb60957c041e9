//! The devices, as NVML describes them.

use serde::{Deserialize, Serialize};

/// NVML's answers, taken in one go.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Nvml {
    /// The driver's version: `580.95.05`.
    pub driver: String,
    /// The newest CUDA that the driver serves, as 1000 major + 10 minor: 13000 for 13.0.
    pub cuda: i32,
    /// Why NVML answers nothing, if it does not.
    pub failure: Option<NvmlFailure>,
    /// The devices, in NVML's order.
    pub devices: Vec<Gpu>,
}

/// A failure of NVML.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NvmlFailure {
    /// The number, as `nvmlReturn_t` has it.
    pub code: u32,
    /// The failure in NVML's words.
    pub text: String,
}

/// One device, as NVML describes it. Sizes are bytes; `None` is what the device does not answer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Gpu {
    /// NVML's index, which is not always CUDA's.
    pub index: u32,
    /// The name: `NVIDIA H200`.
    pub name: String,
    /// The identity that stays: `GPU-…`.
    pub uuid: String,
    /// The number of `/dev/nvidiaN`.
    pub minor: Option<u32>,
    /// The bus address: `00000000:01:00.0`.
    pub pci: String,
    /// Why the device answers nothing about its memory, if it does not.
    pub failure: Option<NvmlFailure>,
    /// Memory of the device.
    pub total: u64,
    /// Memory in use.
    pub used: u64,
    /// Memory not in use.
    pub free: u64,
    /// Memory that driver and firmware keep for themselves.
    pub reserved: Option<u64>,
    /// Processes of the compute, graphics and MPS lists, each once with its larger figure.
    pub processes: Vec<Listed>,
    /// Why the processes are not listed, if they are not.
    pub processes_failure: Option<NvmlFailure>,
    /// Size of the window through which PCIe reaches the memory.
    pub bar1_total: Option<u64>,
    /// Bytes of that window in use.
    pub bar1_used: Option<u64>,
    /// `true` if errors of memory are corrected.
    pub ecc: Option<bool>,
    /// `true` if the device is divided into instances.
    pub mig: Option<bool>,
    /// `true` if the driver stays initialised without a client.
    pub persistence: Option<bool>,
    /// `true` if a screen shows what the device draws.
    pub display: Option<bool>,
    /// The NUMA node of the device's memory, if it is one.
    pub numa_node: Option<u32>,
    /// How the device is virtualised, in NVML's word; `None` and `"None"` if it is not.
    pub virtualization: Option<String>,
    /// `true` if confidential computing is on.
    pub confidential: Option<bool>,
    /// `true` if pages are retired at the next reset.
    pub pages_pending: Option<bool>,
    /// Pages that are retired already.
    pub retired_pages: Option<u32>,
    /// Percent of the last sample in which a kernel ran.
    pub utilization: Option<u32>,
}

/// A process that NVML lists for a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Listed {
    /// The process, as the caller's PID namespace numbers it.
    pub pid: u32,
    /// Its bytes; `None` if the driver does not say (WSL2).
    #[serde(default)]
    pub bytes: Option<u64>,
    /// The list that the process is in.
    #[serde(default)]
    pub kind: Kind,
}

/// NVML's lists of processes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// CUDA.
    #[default]
    Compute,
    /// OpenGL, Vulkan, a compositor.
    Graphics,
    /// Clients of the Multi-Process Service.
    Mps,
}
