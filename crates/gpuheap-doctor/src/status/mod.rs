//! The memory of each device, accounted for by process.

mod text;

use serde::Serialize;

pub use self::text::{render, render_windows};
use crate::machine::{Gpu, Kind, Machine, NvmlFailure, Windows};

/// The account of one device: reserved, the rows and unaccounted add up to what is not free.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Account {
    /// NVML's index; `None` for an emulated device.
    pub index: Option<u32>,
    /// The device's name.
    pub name: String,
    /// The identity that stays: `GPU-…`; empty if the driver names none.
    pub uuid: String,
    /// Why the device answers nothing, if it does not. All amounts are 0 then.
    pub failure: Option<NvmlFailure>,
    /// Memory of the device, bytes.
    pub total_bytes: u64,
    /// Memory that nothing uses, bytes.
    pub free_bytes: u64,
    /// Memory that driver and firmware keep for themselves, bytes; `None` if the driver does not
    /// say.
    pub reserved_bytes: Option<u64>,
    /// Memory in use, without `reserved_bytes`: the sum of the rows and `unaccounted_bytes`.
    pub used_bytes: u64,
    /// The processes, those with the most memory first.
    pub processes: Vec<Row>,
    /// Estimated part of the processes' memory that is CUDA's own: contexts and modules.
    pub contexts_bytes_estimated: u64,
    /// Memory in use that no process is listed with, bytes. Below 0, processes are listed with more
    /// than is in use: memory that two of them share.
    pub unaccounted_bytes: i64,
    /// Processes whose memory the driver does not say, as under WSL2.
    pub processes_without_figure: usize,
}

/// A process on a device.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// The process.
    pub pid: u32,
    /// Its memory on the device, bytes; `None` if the driver does not say.
    pub bytes: Option<u64>,
    /// NVML's list that the process is in.
    pub kind: Kind,
    /// Where the process is.
    pub place: Place,
    /// Its user; `None` if the process cannot be seen.
    pub user: Option<String>,
    /// Its command line; `None` if the process cannot be seen.
    pub command: Option<String>,
    /// Seconds since its start; `None` if the process cannot be seen.
    pub age_seconds: Option<u64>,
    /// The container, 12 digits of its id, if it is in one.
    pub container: Option<String>,
}

/// Where a listed process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// A process of the user that looks.
    Own,
    /// A process of another user.
    OtherUser,
    /// A process in a container.
    Container,
    /// There is no process of that pid: it has ended, and what it held did not go.
    Ended,
    /// The process cannot be seen from here: `/proc` hides it, or it is in another PID namespace.
    Hidden,
}

/// Memory of a context on a card of a data centre: 527 MiB on an H200, driver 580, November 2026.
const LARGE_CONTEXT: u64 = 527 << 20;

/// Memory of a context on other cards: between 256 (RTX 3090) and 426 MiB (RTX 6000 Ada), as
/// reported.
const SMALL_CONTEXT: u64 = 330 << 20;

/// Memory from which a card is taken for one of a data centre.
const LARGE_CARD: u64 = 64 << 30;

/// Accounts as `gpuheap status --json` prints them.
#[derive(Debug, Serialize)]
struct Document<'a> {
    schema: u32,
    driver: &'a str,
    devices: &'a [Account],
    windows: Option<WindowsFigures>,
}

/// Figures of Windows as `gpuheap status --json` prints them, bytes.
#[derive(Debug, Serialize)]
struct WindowsFigures {
    dedicated_bytes: u64,
    shared_bytes: u64,
    wsl_dedicated_bytes: u64,
    wsl_shared_bytes: u64,
}

/// Renders accounts as JSON, which `docs/status.schema.json` describes. `driver` is the driver's
/// version, empty if unknown; `windows` has the figures of Windows under WSL2, if it was asked.
pub fn json(accounts: &[Account], driver: &str, windows: Option<&Windows>) -> String {
    let windows = windows.map(|windows| {
        let (wsl_dedicated_bytes, wsl_shared_bytes) = windows.of_wsl();
        WindowsFigures {
            dedicated_bytes: windows.dedicated,
            shared_bytes: windows.shared,
            wsl_dedicated_bytes,
            wsl_shared_bytes,
        }
    });
    let document = Document { schema: 1, driver, devices: accounts, windows };
    // Numbers, texts and lists are always JSON.
    let text = serde_json::to_string_pretty(&document).unwrap_or_default();
    text + "\n"
}

/// Accounts for every device of the machine.
pub fn of(machine: &Machine) -> Vec<Account> {
    machine.devices().iter().map(|gpu| Account::of(machine, gpu)).collect()
}

impl Account {
    /// Accounts for one device.
    pub fn of(machine: &Machine, gpu: &Gpu) -> Account {
        let reserved = gpu.reserved.unwrap_or(0);
        // NVML's header contradicts itself on whether `used` has the reserved memory in it.
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
            .filter_map(|row| Some(row.bytes?.min(context)))
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

/// Returns `true` if a listed process may be there that `/proc` does not show.
fn can_hide(machine: &Machine) -> bool {
    is_hidden(machine) || (machine.host.is_container && !machine.lists_own_pids())
}

/// Returns `true` if `/proc` leaves out processes of the own PID namespace, or shows none.
pub(crate) fn is_hidden(machine: &Machine) -> bool {
    let host = &machine.host;
    (host.hidepid > 0 && host.uid != Some(0)) || host.is_wsl || machine.visible.is_empty()
}
