//! Devices, as NVML describes them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// NVML's answers, read in one pass.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Nvml {
    /// The driver's version: `580.95.05`.
    pub driver: String,
    /// Newest CUDA version that the driver supports, as 1000 major + 10 minor: 13000 for 13.0.
    pub cuda: i32,
    /// Error of NVML, if NVML gives no answer at all.
    pub failure: Option<NvmlFailure>,
    /// The devices, in NVML's order.
    pub devices: Vec<Gpu>,
}

/// Failure of NVML.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NvmlFailure {
    /// Number in `nvmlReturn_t`.
    pub code: u32,
    /// The failure in NVML's words.
    pub text: String,
}

/// Device, as NVML describes it. Sizes are bytes. A field is `None` if NVML gives no answer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Gpu {
    /// NVML's index. CUDA may number the device differently.
    pub index: u32,
    /// The name: `NVIDIA H200`.
    pub name: String,
    /// Permanent identity: `GPU-…`.
    pub uuid: String,
    /// `N` of the device file `/dev/nvidiaN`.
    pub minor: Option<u32>,
    /// The bus address: `00000000:01:00.0`.
    pub pci: String,
    /// Error of the device, if NVML gives no answer about the device's memory.
    pub failure: Option<NvmlFailure>,
    /// Memory of the device.
    pub total: u64,
    /// Memory in use.
    pub used: u64,
    /// Memory not in use.
    pub free: u64,
    /// Memory that driver and firmware keep for themselves.
    pub reserved: Option<u64>,
    /// Processes in NVML's lists of compute, graphics and MPS processes. A process in several lists
    /// appears once, with its largest figure.
    pub processes: Vec<Listed>,
    /// Reason why the processes are not listed; `None` if they are listed.
    pub processes_failure: Option<NvmlFailure>,
    /// Size of the window through which PCIe reaches the memory.
    pub bar1_total: Option<u64>,
    /// Used bytes of the window through which PCIe reaches the memory.
    pub bar1_used: Option<u64>,
    /// `true` if memory errors are corrected.
    pub ecc: Option<bool>,
    /// `true` if the device is divided into instances.
    pub mig: Option<bool>,
    /// `true` if the driver stays initialised without a client.
    pub persistence: Option<bool>,
    /// `true` if a screen shows the device's output.
    pub display: Option<bool>,
    /// NUMA node of the device's memory, if the memory is a node of the host.
    pub numa_node: Option<u32>,
    /// Kind of virtualisation, as NVML names it; `None` or `"None"` without virtualisation.
    pub virtualization: Option<String>,
    /// `true` if confidential computing is on.
    pub confidential: Option<bool>,
    /// `true` if pages are retired at the next reset.
    pub pages_pending: Option<bool>,
    /// Number of pages that are retired already.
    pub retired_pages: Option<u32>,
    /// Percentage of the last sample period during which a kernel ran.
    pub utilization: Option<u32>,
}

impl fmt::Display for Gpu {
    /// Writes `GPU 0`, with NVML's index.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GPU {}", self.index)
    }
}

/// Process that NVML lists for a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Listed {
    /// Pid, in the caller's PID namespace.
    pub pid: u32,
    /// Bytes of the process; `None` if the driver gives no figure (WSL2).
    #[serde(default)]
    pub bytes: Option<u64>,
    /// List that the process is in.
    #[serde(default)]
    pub kind: Kind,
}

/// NVML's lists of processes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// CUDA programs.
    #[default]
    Compute,
    /// OpenGL and Vulkan programs, and compositors.
    Graphics,
    /// Clients of the Multi-Process Service.
    Mps,
}
