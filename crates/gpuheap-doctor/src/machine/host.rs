//! Facts about the host: its kernel, its memory, its namespaces.

use super::proc::{hidepid, meminfo};
use crate::facts::Source;

/// Host, as `/proc` and `/sys` describe it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Host {
    /// The kernel's release: `6.8.0-45-generic`.
    pub kernel: String,
    /// Seconds since boot.
    pub uptime_seconds: f64,
    /// Memory of the host, in bytes.
    pub memory: u64,
    /// Memory available without swapping, in bytes.
    pub available: u64,
    /// Page cache, in bytes.
    pub cached: u64,
    /// Swap, in bytes.
    pub swap: u64,
    /// Number of processes that the kernel ended since boot, because memory ran out.
    pub oom_kills: u64,
    /// User of this process, if known; 0 is root.
    pub uid: Option<u32>,
    /// `hidepid` of `/proc`: 0 shows every process.
    pub hidepid: u32,
    /// `true` in a container, or in a PID namespace other than the host's.
    pub is_container: bool,
    /// `true` in the PID namespace that the kernel creates first. It shows all processes.
    pub is_first_namespace: bool,
    /// Last pid or thread id that this PID namespace assigned, if known.
    pub last_pid: Option<u32>,
    /// Memory that drivers have pinned, in bytes; 0 if the kernel does not count it.
    pub pinned: u64,
    /// Facts that indicate WSL2.
    pub wsl_facts: Vec<&'static str>,
    /// `true` under WSL2.
    pub is_wsl: bool,
    /// Number of users of the module `nvidia_drm`, if it is loaded.
    pub drm_users: Option<u32>,
    /// `true` if the driver is set not to save device memory while the machine sleeps.
    pub loses_memory_asleep: bool,
    /// `true` if neither an NVIDIA device file nor `/dev/dxg` exists.
    pub has_no_device: bool,
}

/// PID namespace that the kernel creates first.
const FIRST_PID_NAMESPACE: &str = "pid:[4026531836]";

impl Host {
    pub(super) fn read(source: &dyn Source) -> Host {
        let text = |path: &str| source.read_text(path);
        let memory = text("/proc/meminfo");
        let amount = |name: &str| meminfo(&memory, name).unwrap_or(0);
        let status = text("/proc/self/status");
        let uid = status.lines().find_map(|line| line.strip_prefix("Uid:"));
        let kernel = text("/proc/sys/kernel/osrelease").trim().to_owned();
        let devices = source.list("/dev").unwrap_or_default();
        let has_dxg = devices.iter().any(|name| name == "dxg");
        let release = kernel.to_lowercase();
        let is_microsoft = release.contains("microsoft");
        let wsl_facts = wsl_facts(source, is_microsoft, has_dxg);
        // A custom kernel may lack Microsoft's name, and /dev/dxg is missing if the GPU is off.
        let is_wsl = is_microsoft || has_dxg || wsl_facts.len() > 1;
        let vmstat = text("/proc/vmstat");
        let counted = |name: &str| {
            let line = vmstat.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(first_word::<u64>).unwrap_or(0)
        };
        Host {
            uptime_seconds: uptime_seconds(source),
            memory: amount("MemTotal"),
            available: amount("MemAvailable"),
            cached: amount("Cached"),
            swap: amount("SwapTotal"),
            oom_kills: counted("oom_kill "),
            pinned: counted("nr_foll_pin_acquired ")
                .saturating_sub(counted("nr_foll_pin_released "))
                .saturating_mul(PAGE),
            wsl_facts,
            uid: uid.and_then(first_word),
            hidepid: hidepid(&text("/proc/self/mountinfo")),
            is_container: is_container(source, is_wsl),
            is_first_namespace: source
                .link("/proc/self/ns/pid")
                .is_ok_and(|namespace| namespace == FIRST_PID_NAMESPACE),
            last_pid: text("/proc/loadavg")
                .split_whitespace()
                .nth(4)
                .and_then(|number| number.parse().ok()),
            is_wsl,
            drm_users: first_word(&text("/sys/module/nvidia_drm/refcnt")),
            loses_memory_asleep: text("/proc/driver/nvidia/params")
                .lines()
                .any(|line| line.trim() == "PreserveVideoMemoryAllocations: 0"),
            has_no_device: !has_dxg && !devices.iter().any(|name| name.starts_with("nvidia")),
            kernel,
        }
    }
}

/// Bytes of a page on the machines that WSL2 runs on.
const PAGE: u64 = 4096;

/// Returns the facts that indicate WSL2. Each fact can be missing: in a container, under sudo, with
/// a custom kernel, or if the GPU or the start of Windows programs is switched off.
fn wsl_facts(source: &dyn Source, is_microsoft: bool, has_dxg: bool) -> Vec<&'static str> {
    let is_there = |path: &str| source.read(path).is_ok() || source.list(path).is_ok();
    let interop = "/proc/sys/fs/binfmt_misc/WSLInterop";
    let facts = [
        (is_microsoft, "the kernel's release"),
        (has_dxg, "/dev/dxg"),
        (is_there("/usr/lib/wsl/lib/libcuda.so.1"), "the driver in /usr/lib/wsl/lib"),
        (
            ["WSL_DISTRO_NAME", "WSL_INTEROP"].iter().any(|name| source.variable(name).is_some()),
            "WSL_DISTRO_NAME or WSL_INTEROP",
        ),
        (is_there(interop) || is_there(&format!("{interop}-late")), "binfmt_misc/WSLInterop"),
        (is_there("/mnt/wslg"), "/mnt/wslg"),
    ];
    facts.into_iter().filter(|(is_so, _)| *is_so).map(|(_, fact)| fact).collect()
}

fn is_container(source: &dyn Source, is_wsl: bool) -> bool {
    let is_there = |path: &str| source.read(path).is_ok();
    if is_there("/.dockerenv") || is_there("/run/.containerenv") {
        return true;
    }
    // WSL2 runs each distribution in a separate namespace.
    let namespace = source.link("/proc/self/ns/pid");
    !is_wsl && namespace.is_ok_and(|namespace| namespace != FIRST_PID_NAMESPACE)
}

/// Reads the seconds since boot; 0 if they cannot be read.
pub(super) fn uptime_seconds(source: &dyn Source) -> f64 {
    first_word(&source.read_text("/proc/uptime")).unwrap_or(0.0)
}

/// Parses the first word of a text.
fn first_word<T: std::str::FromStr>(text: &str) -> Option<T> {
    text.split_whitespace().next()?.parse().ok()
}
