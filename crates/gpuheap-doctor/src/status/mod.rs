//! Accounts of each device's memory, by process.

mod text;

use gpuheap_publish::{Held, Published};
use serde::Serialize;

pub use self::text::{render, render_programs, render_windows};
use crate::machine::{Gpu, Kind, Machine, NvmlFailure, Windows};

/// Account of one device. `reserved_bytes`, the rows and `unaccounted_bytes` add up to the memory
/// that is not free.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Account {
    /// NVML's index; `None` for an emulated device.
    pub index: Option<u32>,
    /// The device's name.
    pub name: String,
    /// Permanent identity: `GPU-…`; empty if the driver gives none.
    pub uuid: String,
    /// Error of the device, if it gives no answer. Then all amounts are 0.
    pub failure: Option<NvmlFailure>,
    /// Memory of the device, in bytes.
    pub total_bytes: u64,
    /// Memory not in use, in bytes.
    pub free_bytes: u64,
    /// Memory that driver and firmware keep for themselves, in bytes; `None` if the driver gives no
    /// figure.
    pub reserved_bytes: Option<u64>,
    /// Memory in use: the sum of `processes` and `unaccounted_bytes`. Excludes `reserved_bytes`.
    pub used_bytes: u64,
    /// Processes, the most memory first.
    pub processes: Vec<Row>,
    /// Estimate of the memory that CUDA itself uses in the processes, for contexts and modules.
    pub contexts_bytes_estimated: u64,
    /// Memory in use by no listed process, in bytes. Negative if the processes' figures exceed the
    /// memory in use, because two processes share memory.
    pub unaccounted_bytes: i64,
    /// Number of processes for which the driver gives no figure, as under WSL2.
    pub processes_without_figure: usize,
}

/// Process on a device.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Row {
    /// Pid of the process.
    pub pid: u32,
    /// Memory of the process on the device, in bytes; `None` if the driver gives no figure.
    pub bytes: Option<u64>,
    /// NVML's list that the process is in.
    pub kind: Kind,
    /// Place of the process.
    pub place: Place,
    /// User of the process; `None` if the process cannot be seen.
    pub user: Option<String>,
    /// Command line of the process; `None` if the process cannot be seen.
    pub command: Option<String>,
    /// Seconds since the start of the process; `None` if the process cannot be seen.
    pub age_seconds: Option<u64>,
    /// First 12 digits of the container's id, if the process is in a container.
    pub container: Option<String>,
}

/// Place of a listed process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// A process of this user.
    #[default]
    Own,
    /// A process of another user.
    OtherUser,
    /// A process in a container.
    Container,
    /// The process has ended, but the driver still lists memory for it.
    Ended,
    /// The process cannot be seen: `/proc` hides it, or it is in another PID namespace.
    Hidden,
}

/// Memory of a context on a data-centre card: 527 MiB on an H200, driver 580, November 2026.
const LARGE_CONTEXT: u64 = 527 << 20;

/// Memory of a context on a card that is not a data-centre card. Users reported 256 MiB (RTX 3090)
/// to 426 MiB (RTX 6000 Ada).
const SMALL_CONTEXT: u64 = 330 << 20;

/// Minimum memory of a data-centre card.
const LARGE_CARD: u64 = 64 << 30;

/// Accounts, as `gpuheap status --json` prints them.
#[derive(Debug, Serialize)]
struct Document<'a, P> {
    driver: &'a str,
    devices: &'a [Account],
    windows: Option<WindowsFigures>,
    programs: &'a [P],
}

/// A program that publishes, in detail.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Program {
    /// The heaps, lines, scopes and libraries.
    #[serde(flatten)]
    pub published: Published,
    /// Outstanding allocations with their holders; empty if the program records no Python lines.
    pub held: Vec<Held>,
}

impl Program {
    /// Renders the program as JSON that `docs/status.schema.json` describes: a document with one
    /// program.
    pub fn to_json(&self) -> String {
        let (driver, programs) = ("", std::slice::from_ref(self));
        crate::json(&Document { driver, devices: &[], windows: None, programs })
    }
}

/// Figures that Windows gives, in bytes. `gpuheap status --json` prints them.
#[derive(Debug, Serialize)]
struct WindowsFigures {
    dedicated_bytes: u64,
    shared_bytes: u64,
    wsl_dedicated_bytes: u64,
    wsl_shared_bytes: u64,
}

/// Renders accounts as JSON that `docs/status.schema.json` describes. `driver` is the driver's
/// version, empty if unknown. `windows` contains the figures of Windows under WSL2, if known.
/// `programs` are the processes that publish their memory.
pub fn json(
    accounts: &[Account],
    driver: &str,
    windows: Option<&Windows>,
    programs: &[Published],
) -> String {
    let windows = windows.map(|windows| {
        let (wsl_dedicated_bytes, wsl_shared_bytes) = windows.wsl_memory();
        WindowsFigures {
            dedicated_bytes: windows.dedicated,
            shared_bytes: windows.shared,
            wsl_dedicated_bytes,
            wsl_shared_bytes,
        }
    });
    crate::json(&Document { driver, devices: accounts, windows, programs })
}

/// Returns the accounts of all devices of the machine.
pub fn accounts(machine: &Machine) -> Vec<Account> {
    machine.devices().iter().map(|gpu| Account::new(machine, gpu)).collect()
}

impl Account {
    /// Returns the account of one device.
    pub fn new(machine: &Machine, gpu: &Gpu) -> Account {
        let reserved = gpu.reserved.unwrap_or(0);
        // NVML's header contradicts itself on whether `used` includes the reserved memory.
        let is_included =
            gpu.used.saturating_add(gpu.free) > gpu.total.saturating_sub(reserved / 2);
        let used = if is_included { gpu.used.saturating_sub(reserved) } else { gpu.used };
        let mut processes: Vec<Row> =
            gpu.processes.iter().map(|listed| row(machine, listed)).collect();
        processes.sort_by_key(|row| (std::cmp::Reverse(row.bytes), row.pid));
        let listed = processes.iter().filter_map(|row| row.bytes).fold(0, u64::saturating_add);
        let context = if gpu.total >= LARGE_CARD { LARGE_CONTEXT } else { SMALL_CONTEXT };
        let contexts = processes
            .iter()
            .filter(|row| row.kind != Kind::Graphics)
            .filter_map(|row| {
                let process = machine.process(row.pid);
                let known = process.map_or(0, |process| process.contexts_on(gpu.minor));
                let contexts = context.saturating_mul(known.max(1) as u64);
                Some(row.bytes?.min(contexts))
            })
            .fold(0, u64::saturating_add);
        Account {
            index: Some(gpu.index),
            name: gpu.name.clone(),
            uuid: gpu.uuid.clone(),
            failure: gpu.failure.clone(),
            total_bytes: gpu.total,
            free_bytes: gpu.free,
            reserved_bytes: gpu.reserved,
            used_bytes: used,
            contexts_bytes_estimated: contexts,
            unaccounted_bytes: difference(used, listed),
            processes_without_figure: processes.iter().filter(|row| row.bytes.is_none()).count(),
            processes,
        }
    }
}

fn difference(used: u64, listed: u64) -> i64 {
    let clamp = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    clamp(used) - clamp(listed)
}

fn row(machine: &Machine, listed: &crate::machine::Listed) -> Row {
    let process = machine.process(listed.pid);
    let place = match process {
        None if can_hide(machine) => Place::Hidden,
        None => Place::Ended,
        Some(process) if process.container.is_some() => Place::Container,
        Some(process) if process.uid == machine.host.uid => Place::Own,
        Some(_) => Place::OtherUser,
    };
    Row {
        pid: listed.pid,
        bytes: listed.bytes,
        kind: listed.kind,
        place,
        user: process.map(|process| process.user.clone()),
        command: process.map(|process| process.command(200)),
        age_seconds: process.map(|process| process.age_seconds),
        container: process.and_then(|process| process.container.clone()),
    }
}

/// Returns `true` if `/proc` may hide live processes that the driver lists.
fn can_hide(machine: &Machine) -> bool {
    is_hidden(machine) || (machine.host.is_container && !machine.lists_own_pids())
}

/// Returns `true` if `/proc` leaves out processes of its own PID namespace, or shows no process.
pub(crate) fn is_hidden(machine: &Machine) -> bool {
    let host = &machine.host;
    (host.hidepid > 0 && host.uid != Some(0)) || host.is_wsl || machine.visible.is_empty()
}
