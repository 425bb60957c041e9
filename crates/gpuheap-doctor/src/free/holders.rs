//! Lists the holders of the devices' memory, and the steps that would free that memory.

use gpuheap_text::{age, count, cut, hanging, mib};
use serde::Serialize;

use crate::evidence;
use crate::machine::{Kind, Machine, WindowsProcess};
use crate::status::{Account, Place, Row};

/// Suggested step that would give memory back: a command for the user to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Step {
    /// Reason why the step would help.
    pub reason: String,
    /// Bytes that the step would give back; 0 if unknown.
    pub bytes: u64,
    /// Command to type.
    pub command: String,
}

/// Memory in use on one device, and its holders.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Held {
    /// NVML's index of the device.
    pub device: u32,
    /// Memory of the device, in bytes.
    pub total_bytes: u64,
    /// Memory in use, in bytes.
    pub used_bytes: u64,
    /// Holders, the most memory first.
    pub holders: Vec<Holder>,
}

/// Holder of memory: one process, or several processes counted together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Holder {
    /// Pid, if the holder is one process of this system.
    pub pid: Option<u32>,
    /// The holder, in words.
    pub name: String,
    /// Memory of the holder, in bytes; `None` if no figure is known.
    pub bytes: Option<u64>,
}

/// Returns each device that can be read, with the memory in use and its holders.
pub(super) fn held_memory(machine: &Machine) -> Vec<Held> {
    evidence::accounts(machine)
        .map(|(gpu, account)| {
            let mut holders: Vec<Holder> = account.processes.iter().map(holder).collect();
            // Under WSL2 the driver lists no process, but /proc shows which processes have the
            // device open.
            holders.extend(unlisted(machine).map(|process| Holder {
                pid: Some(process.pid),
                name: format!("{} ({})", process.command(40), process.user),
                bytes: None,
            }));
            Held {
                device: gpu.index,
                total_bytes: account.total_bytes,
                used_bytes: account.used_bytes,
                holders,
            }
        })
        .collect()
}

/// Returns the processes under WSL2 that have the card open and that the driver does not list.
fn unlisted(machine: &Machine) -> impl Iterator<Item = &crate::machine::Process> {
    evidence::unlisted_holders(machine)
        .filter(|process| machine.host.is_wsl && !evidence::is_monitor(process))
}

fn holder(row: &Row) -> Holder {
    let name = match (row.place, &row.command, &row.user) {
        (Place::Ended, ..) => "(ended)".to_owned(),
        (Place::Hidden, ..) => "(not visible from here)".to_owned(),
        (_, Some(command), Some(user)) => format!(
            "{} ({user}, {})",
            cut(command, 40),
            row.age_seconds.map_or_else(|| "-".to_owned(), age)
        ),
        _ => "unknown".to_owned(),
    };
    Holder { pid: Some(row.pid), name, bytes: row.bytes }
}

/// Returns the holders of device memory under WSL2, from the counters of Windows.
pub(super) fn windows_holders(machine: &Machine) -> Vec<Holder> {
    let Some(windows) = &machine.windows else { return Vec::new() };
    let (own, _) = windows.wsl_memory();
    let mut holders = vec![Holder { pid: None, name: "all of WSL2".to_owned(), bytes: Some(own) }];
    let others = windows.processes.iter().filter(|process| !process.is_wsl());
    let others = others.filter(|process| process.dedicated > 0);
    let of = |process: &WindowsProcess| Holder {
        pid: None,
        name: format!("{}, of Windows", cut(&process.name, 40)),
        bytes: Some(process.dedicated),
    };
    holders.extend(others.take(MOST_SHOWN).map(of));
    holders
}

/// Number of Windows programs that are shown.
const MOST_SHOWN: usize = 5;

/// Returns a step that would free memory, for each process that holds memory and is not in `named`.
/// The processes in `named` already have a step.
pub(super) fn steps(machine: &Machine, named: &[u32]) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut seen = named.to_vec();
    for (gpu, account) in evidence::accounts(machine) {
        for row in &account.processes {
            if !seen.contains(&row.pid) {
                seen.push(row.pid);
                steps.push(row_step(machine, row));
            }
        }
        for process in unlisted(machine).filter(|process| !seen.contains(&process.pid)) {
            let place = if process.uid == machine.host.uid { Place::Own } else { Place::OtherUser };
            let bytes = 0;
            let name = format!("pid {} ({})", process.pid, process.command(40));
            steps.push(place_step(machine, place, process.pid, &process.user, &name, bytes));
        }
        seen.extend(unlisted(machine).map(|process| process.pid));
        if let Some(step) = unaccounted_step(machine, gpu.index, &account) {
            steps.push(step);
        }
    }
    if let Some(windows) = &machine.windows {
        let others = windows.others_memory();
        if others > 0 && !steps.iter().any(|step| step.reason.contains("Windows programs")) {
            steps.push(Step {
                reason: "Windows programs: nothing inside WSL2 can end them; close them in Windows"
                    .to_owned(),
                bytes: others,
                command: "taskmgr.exe".to_owned(),
            });
        }
    }
    steps
}

/// Returns the step for a listed process.
fn row_step(machine: &Machine, row: &Row) -> Step {
    let bytes = row.bytes.unwrap_or(0);
    let name = match &row.command {
        Some(command) => format!("pid {} ({})", row.pid, cut(command, 40)),
        None => format!("pid {}", row.pid),
    };
    if row.kind == Kind::Graphics {
        let reason =
            format!("{name} draws the screen; its memory comes back when its session ends");
        return Step { reason, bytes, command: format!("ps -fp {}", row.pid) };
    }
    let user = row.user.as_deref().unwrap_or_default();
    place_step(machine, row.place, row.pid, user, &name, bytes)
}

fn place_step(
    machine: &Machine,
    place: Place,
    pid: u32,
    user: &str,
    name: &str,
    bytes: u64,
) -> Step {
    let (reason, command) = match place {
        Place::Own if machine.host.is_wsl => (
            format!("{name} is yours and runs; its memory comes back when it ends"),
            kill_command(pid),
        ),
        Place::Own => (
            format!(
                "{name} is yours and runs; its memory comes back when it ends, or for a while with \
                 gpuheap pause {pid}"
            ),
            kill_command(pid),
        ),
        Place::OtherUser if machine.host.uid == Some(0) => (
            format!("{name} is {user}'s and runs; write to {user} before you end it"),
            kill_command(pid),
        ),
        Place::OtherUser => (
            format!(
                "{name} is {user}'s and runs; only {user} can end it; write to {user}, or wait"
            ),
            "gpuheap wait --free 50%".to_owned(),
        ),
        Place::Container => (
            format!("{name} runs in a container; it ends with the container"),
            "docker ps".to_owned(),
        ),
        Place::Ended => {
            (format!("{name} has ended, and its memory was not freed"), "gpuheap doctor".to_owned())
        }
        Place::Hidden if machine.host.is_container => (
            format!("{name} is not visible in this container; look on the host"),
            "gpuheap free".to_owned(),
        ),
        Place::Hidden => {
            (format!("{name} is not visible to this user"), "sudo gpuheap free".to_owned())
        }
    };
    Step { reason, bytes, command }
}

fn kill_command(pid: u32) -> String {
    format!("kill {pid}")
}

/// Returns the step that is suggested if no listed process accounts for some memory in use.
fn unaccounted_step(machine: &Machine, gpu: u32, account: &Account) -> Option<Step> {
    if machine.host.is_wsl {
        if machine.windows.is_some() || account.used_bytes == 0 {
            return None;
        }
        return Some(Step {
            reason: format!(
                "GPU {gpu}: Windows gave no figures, so the share of its programs in the {} in use \
                 is unknown; its Task Manager shows it",
                mib(account.used_bytes)
            ),
            bytes: 0,
            command: "tasklist.exe".to_owned(),
        });
    }
    let bytes = u64::try_from(account.unaccounted_bytes).unwrap_or(0);
    if account.unaccounted_bytes <= evidence::unaccounted_limit(account) {
        return None;
    }
    let reason = format!(
        "GPU {gpu}: no visible process is listed with this memory{}",
        if evidence::cannot_list(machine) { "; look on the host, as root" } else { "" }
    );
    Some(Step { reason, bytes, command: "sudo gpuheap doctor".to_owned() })
}

/// Renders the holders for `width` columns.
pub(super) fn render(devices: &[Held], windows: &[Holder], width: usize) -> String {
    let mut text = String::new();
    for held in devices {
        let words = format!(
            "GPU {}: {} of {} in use, {}",
            held.device,
            mib(held.used_bytes),
            mib(held.total_bytes),
            match held.holders.len() {
                0 => "by no process that the driver lists".to_owned(),
                holders => format!("by {}", count(holders as u64, "process")),
            }
        );
        hanging(&mut text, "", "  ", &words, width);
        add_holders(&mut text, &held.holders, width);
    }
    if !windows.is_empty() {
        text.push_str("Windows counts, of the whole card:\n");
        add_holders(&mut text, windows, width);
    }
    text
}

fn add_holders(text: &mut String, holders: &[Holder], width: usize) {
    for holder in holders {
        let size = holder.bytes.map_or_else(|| "unknown".to_owned(), mib);
        let pid = holder.pid.map(|pid| format!("pid {pid} ")).unwrap_or_default();
        text.push_str(&cut(&format!("  {size:>10}  {pid}{}", holder.name), width));
        text.push('\n');
    }
}
