//! Plans steps that would give memory back. Ends processes that are proven to hold only the memory
//! of an ended process (orphans).

mod holders;
mod requests;

use std::collections::BTreeSet;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use gpuheap_publish::{Access, Answer, Question, RefusalKind};
use gpuheap_text::{cut, hanging, mib};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::Serialize;

pub use holders::{Held, Holder, Step};

use crate::doctor::diagnose;
use crate::evidence::{self, Ended};
use crate::machine::{Machine, Process};
use crate::rule::{Finding, Severity};
use crate::status;

/// Time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(5);

/// Process that holds memory of an ended process. No other process uses that memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Orphan {
    /// Pid of the process.
    pub pid: u32,
    /// Start of the process after boot, in ticks of 10 ms.
    pub start_ticks: u64,
    /// Command line of the process.
    pub command: String,
    /// NVML's index of the device.
    pub device: u32,
    /// Pid of the ended process. The driver still lists the memory under this pid.
    pub listed_pid: u32,
    /// Listed memory, in bytes.
    pub bytes: u64,
}

/// Cached memory of a program that allows other processes to flush it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Cache {
    /// Pid of the program.
    pub pid: u32,
    /// User of the program.
    pub uid: u32,
    /// Command line of the program.
    pub program: String,
    /// Cached memory, in bytes.
    pub bytes: u64,
}

/// Memory in use, its holders, and steps that would give memory back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// Devices that can be read, each with the memory in use.
    pub devices: Vec<Held>,
    /// Holders of the card's memory under WSL2, as Windows counts them. They are Windows' own
    /// programs, and WSL2 as a whole. Empty if unknown.
    pub windows: Vec<Holder>,
    /// Processes that only hold memory of ended processes, and may be ended.
    pub orphans: Vec<Orphan>,
    /// Reason why processes cannot be proven to be orphans. Then `orphans` is empty.
    pub unproven: Option<String>,
    /// Programs that can give back cached memory on request, and continue.
    pub caches: Vec<Cache>,
    /// Further steps, each a command.
    pub steps: Vec<Step>,
}

/// Returns the plan for a machine that was [examined](Machine::examine). Changes nothing.
pub fn plan(machine: &Machine) -> Plan {
    let (orphans, unproven) = match proven_orphans(machine) {
        Ok(orphans) => (orphans, None),
        Err(reason) => (Vec::new(), Some(reason)),
    };
    let is_taken = |pids: &[u32]| {
        !pids.is_empty() && pids.iter().all(|pid| orphans.iter().any(|orphan| orphan.pid == *pid))
    };
    let (servers, mut steps): (Vec<u32>, Vec<Step>) =
        requests::requests(machine).into_iter().unzip();
    let caches = caches(machine);
    let findings = diagnose(machine).findings.into_iter();
    let findings = findings
        .filter(|finding| {
            finding.severity != Severity::Info
                || ["P07", "P08", "P10", "P25"].contains(&finding.rule)
        })
        .filter(|finding| {
            let is_flushed = caches.iter().any(|cache| finding.pids == [cache.pid]);
            !(is_flushed && finding.rule == "P25")
        })
        .filter(|finding| !is_taken(&finding.pids))
        .filter(|finding| {
            let takes_requests = finding.pids.iter().any(|pid| servers.contains(pid));
            !(takes_requests && ["P08", "P10"].contains(&finding.rule))
        });
    let mut named = servers.clone();
    for finding in findings {
        // A command that only shows the process gives nothing back.
        if !finding.command.starts_with("ps ") {
            named.extend(&finding.pids);
        }
        steps.push(step(machine, finding));
    }
    named.extend(orphans.iter().flat_map(|orphan| [orphan.pid, orphan.listed_pid]));
    steps.extend(holders::steps(machine, &named));
    let (devices, windows) = (holders::held_memory(machine), holders::windows_holders(machine));
    Plan { devices, windows, orphans, unproven, caches, steps }
}

/// Returns this user's programs that keep freed memory and allow other processes to flush it.
fn caches(machine: &Machine) -> Vec<Cache> {
    let programs = machine.programs.iter().filter(|one| Some(one.uid) == machine.host.uid);
    let caches = programs.filter_map(|program| {
        let (pid, status) = (program.pid?, program.status.as_ref()?);
        let open = status.heaps.iter().filter(|heap| heap.access == Access::Control);
        let cached = open.map(|heap| heap.cached).fold(0, u64::saturating_add);
        let (uid, name) = (program.uid, status.program.clone());
        (cached > 0).then_some(Cache { pid, uid, program: name, bytes: cached })
    });
    caches.collect()
}

fn step(machine: &Machine, finding: Finding) -> Step {
    Step {
        bytes: match finding.pids.as_slice() {
            [pid] if finding.bytes == 0 => evidence::listed_bytes(machine, *pid).unwrap_or(0),
            _ => finding.bytes,
        },
        reason: format!("{}: {}", finding.rule, finding.fact),
        command: finding.command,
    }
}

/// Returns the processes that are proven to hold memory of an ended process.
///
/// # Errors
///
/// Returns the reason if an ended process has memory, but its holders cannot be determined.
fn proven_orphans(machine: &Machine) -> Result<Vec<Orphan>, String> {
    let mut orphans: Vec<Orphan> = Vec::new();
    for gpu in machine.devices() {
        let account = status::Account::new(machine, gpu);
        for row in account
            .processes
            .iter()
            .filter(|row| evidence::ended(machine, row) == Some(Ended::Proven))
        {
            match machine.unreadable {
                Some(0) => {}
                Some(count) => {
                    return Err(format!(
                        "the descriptors of {count} processes cannot be read, and one of them may \
                         use the memory of pid {}: sudo gpuheap free",
                        row.pid
                    ));
                }
                None => return Err("processes could not be looked at in time".to_owned()),
            }
            if let Some(server) = machine.processes.iter().find(|one| evidence::is_mps(one)) {
                return Err(format!(
                    "MPS runs (pid {}), and its server has the memory of clients that live",
                    server.pid
                ));
            }
            if let Some((_, reason)) = machine.skipped.iter().find(|(probe, _)| *probe == "kcmp") {
                return Err(format!("{reason}, and one may belong to a program that runs"));
            }
            if gpu.minor.is_none() {
                return Err(format!("GPU {} does not say which device file is its", gpu.index));
            }
            let has_it = |process: &&Process| process.has_open(gpu.minor);
            let holders: Vec<&Process> = machine.processes.iter().filter(has_it).collect();
            let is_unlisted = |process: &&&Process| !machine.is_listed(process.pid);
            for holder in holders.iter().filter(is_unlisted) {
                let holds = |pid| holders.iter().any(|other| other.pid == pid);
                let is_proven = !evidence::serves_living(machine, holder)
                    && !evidence::is_grouped_with_living(machine, holder)
                    && (holders.len() == 1 || evidence::partners(machine, holder.pid).any(holds));
                if is_proven && holder.pid > 1 && !evidence::is_monitor(holder) {
                    orphans.push(Orphan {
                        pid: holder.pid,
                        start_ticks: holder.start_ticks,
                        command: holder.command(60),
                        device: gpu.index,
                        listed_pid: row.pid,
                        bytes: row.bytes.unwrap_or(0),
                    });
                }
            }
        }
    }
    let mut known = BTreeSet::new();
    orphans.retain(|orphan| known.insert(orphan.pid));
    Ok(orphans)
}

impl Plan {
    /// Keeps only the orphans that `later`, a second plan of the same machine, contains too. An
    /// orphan is a process that holds memory of an ended process. The driver's list and the
    /// processes are read one after the other. So in one plan alone, a process that has just begun
    /// may look as if it had ended.
    pub fn confirm(&mut self, later: &Plan) {
        let is_same = |one: &Orphan, other: &Orphan| {
            (one.pid, one.start_ticks, one.device, one.listed_pid)
                == (other.pid, other.start_ticks, other.device, other.listed_pid)
        };
        self.orphans.retain(|orphan| later.orphans.iter().any(|other| is_same(orphan, other)));
    }

    /// Renders the plan for `width` columns.
    pub fn render(&self, width: usize) -> String {
        let mut text = holders::render(&self.devices, &self.windows, width);
        let held = text.len();
        for cache in &self.caches {
            let words = format!(
                "pid {} ({}) gives back {} that it keeps for later, and runs on",
                cache.pid,
                cut(&cache.program, 40),
                mib(cache.bytes)
            );
            hanging(&mut text, "- ", "  ", &words, width);
            text.push_str("  $ gpuheap free --yes\n");
        }
        for orphan in &self.orphans {
            let words = format!(
                "ending pid {} ({}) gives back {} of GPU {}, listed under pid {}, which has ended",
                orphan.pid,
                orphan.command,
                mib(orphan.bytes),
                orphan.device,
                orphan.listed_pid
            );
            hanging(&mut text, "- ", "  ", &words, width);
            text.push_str("  $ gpuheap free --yes\n");
        }
        if let Some(reason) = &self.unproven {
            hanging(&mut text, "- nothing is ended: ", "  ", reason, width);
        }
        for step in &self.steps {
            let gives = match step.bytes {
                0 => String::new(),
                bytes => format!(" (up to {})", mib(bytes)),
            };
            hanging(&mut text, "- ", "  ", &format!("{}{gives}", step.reason), width);
            text.push_str(&format!("  $ {}\n", step.command));
        }
        if text.len() == held {
            text.push_str("no process holds memory: nothing to give back\n");
        }
        text
    }

    /// Renders the plan as JSON that `docs/free.schema.json` describes.
    pub fn to_json(&self) -> String {
        crate::json(self)
    }
}

/// Ends an orphan of this machine with SIGTERM, and with SIGKILL after five seconds. Blocks until
/// the orphan has ended, for six seconds at most.
///
/// # Errors
///
/// Returns an error if the pid now belongs to another process, if signalling the process is not
/// permitted, or if the process does not end.
pub fn end(orphan: &Orphan) -> Result<(), String> {
    let pid = orphan.pid;
    let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let number = number.ok_or_else(|| format!("{pid} is no pid"))?;
    // Another process may get the pid later. So the descriptor is opened first, and then the start
    // time of its process is compared with the start time that the plan noted.
    let process = match pidfd_open(number, PidfdFlags::empty()) {
        Err(rustix::io::Errno::SRCH) => return Ok(()),
        opened => opened.map_err(|error| format!("pid {pid}: {error}"))?,
    };
    if pid_of_descriptor(process.as_raw_fd()) != Some(pid) {
        return Err(format!(
            "pid {pid}: /proc is that of another PID namespace, so its numbers mean other processes"
        ));
    }
    if Machine::start_ticks_here(orphan.listed_pid).is_some() {
        return Err(format!(
            "pid {} runs again, under which the memory is listed; look again with gpuheap free",
            orphan.listed_pid
        ));
    }
    if Machine::start_ticks_here(pid) != Some(orphan.start_ticks) {
        return Err(format!("pid {pid} is another process by now; look again with gpuheap free"));
    }
    for (signal, patience) in [(Signal::TERM, GRACE), (Signal::KILL, Duration::from_secs(1))] {
        match pidfd_send_signal(&process, signal) {
            Err(rustix::io::Errno::SRCH) => return Ok(()),
            sent => sent.map_err(|error| format!("pid {pid} cannot be ended: {error}"))?,
        }
        let start = Instant::now();
        while start.elapsed() < patience {
            if !Machine::is_running_here(pid, orphan.start_ticks) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    Err(format!("pid {pid} does not end; see gpuheap doctor, P03"))
}

/// Makes a program give back its cached memory. Returns the bytes given back, and a line for each
/// of the program's sockets that allows a flush. Blocks for 11 seconds at most for each socket.
pub fn flush(cache: &Cache) -> (u64, String) {
    let Cache { pid, uid, program, .. } = cache;
    let name = format!("pid {pid} ({})", cut(program, 40));
    let (mut sum, mut text) = (0_u64, String::new());
    let mut sockets = gpuheap_publish::sockets();
    sockets.retain(|socket| socket.uid == *uid);
    for socket in gpuheap_publish::of_process(sockets, *pid) {
        let reason = match gpuheap_publish::ask(&socket, &Question::Flush) {
            Ok((_, Answer::GivenBack(bytes))) => {
                sum = sum.saturating_add(bytes);
                text.push_str(&format!("{name} gave back {}\n", mib(bytes)));
                continue;
            }
            Ok((_, Answer::Refused(refusal))) if refusal.kind == RefusalKind::NotAllowed => {
                continue;
            }
            Ok((_, Answer::Refused(refusal))) => refusal.text,
            Ok(_) => "its answer is to another question".to_owned(),
            Err(error) => error.to_string(),
        };
        text.push_str(&format!("{name} gave nothing back: {reason}\n"));
    }
    (sum, text)
}

/// Returns the pid that `/proc` shows for the process that a pidfd refers to.
fn pid_of_descriptor(descriptor: i32) -> Option<u32> {
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{descriptor}")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("Pid:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn orphan(pid: u32, start_ticks: u64) -> Orphan {
        let command = String::new();
        Orphan { pid, start_ticks, command, device: 0, listed_pid: u32::MAX, bytes: 0 }
    }

    #[test]
    fn process_of_other_start_survives() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let start = Machine::start_ticks_here(child.id()).unwrap();
        assert!(end(&orphan(child.id(), start + 1)).unwrap_err().contains("another process"));
        assert_eq!(child.try_wait().unwrap(), None);
        assert_eq!(end(&orphan(child.id(), start)), Ok(()));
        assert!(!child.wait().unwrap().success());
    }

    #[test]
    fn invalid_pid_is_refused() {
        assert!(end(&orphan(0, 0)).is_err());
        assert!(end(&orphan(u32::MAX, 0)).is_err());
    }
}
