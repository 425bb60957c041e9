//! Processes that NVML lists or that hold a device, as `/proc` describes them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::host::uptime_seconds;
use super::maps::Maps;
use super::probe::limited;
use super::proc::{Stat, container, user_name};
use crate::facts::{Source, Why, device, is_kept_variable, windows_drive};

/// Process of the machine.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Process {
    /// Pid of the process.
    pub pid: u32,
    /// Name in the kernel, 15 bytes at most.
    pub comm: String,
    /// Arguments; empty if they cannot be read.
    pub arguments: Vec<String>,
    /// `true` if [`command`](Process::command) leaves out the arguments.
    pub hides_arguments: bool,
    /// State, as in `/proc/PID/stat`: `R`, `S`, `D`, `T`, `t`, `Z`.
    pub state: char,
    /// Pid of the parent.
    pub parent: u32,
    /// Pid of the process group's leader.
    pub group: u32,
    /// Pid of the session's leader.
    pub session: u32,
    /// Controlling terminal; 0 for none.
    pub terminal: i64,
    /// Number of threads.
    pub threads: u64,
    /// Processor time, in ticks of 10 ms.
    pub busy_ticks: u64,
    /// Start after boot, in ticks of 10 ms. Pid and start together identify a process.
    pub start_ticks: u64,
    /// Seconds since the start.
    pub age_seconds: u64,
    /// User id, if it could be read.
    pub uid: Option<u32>,
    /// User name. If it is not known, the user id as text, or `?`.
    pub user: String,
    /// Pid of the attached debugger; 0 for none.
    pub tracer: u32,
    /// Control group.
    pub cgroup: String,
    /// First 12 digits of the container's id, if the control group names a container.
    pub container: Option<String>,
    /// Open descriptors of devices: number and file.
    pub holds: Vec<(u32, String)>,
    /// Windows drives on which the process has files open: `/mnt/c`.
    pub drives: BTreeSet<String>,
    /// `true` if the descriptors could be read.
    pub is_readable: bool,
    /// Mapped files that rules look for: libraries and device files.
    pub maps: BTreeSet<String>,
    /// Number of contexts on each device file. A context maps the file once (H200, driver 580), so
    /// the mappings are counted. Empty if the driver makes no such mapping.
    pub contexts: BTreeMap<String, usize>,
    /// Mapped bytes of shared anonymous memory. `cuMemHostAlloc` maps such memory (driver 580), and
    /// programs share such memory between processes.
    pub shared_anonymous: u64,
    /// `true` if the process has a thread of the CUDA driver. A context starts such a thread, and a
    /// fork does not copy the thread. `None` if the threads could not be read.
    pub has_cuda_thread: Option<bool>,
    /// Environment variables that rules read.
    pub environment: BTreeMap<String, String>,
    /// Kernel function in which the process sleeps, if it can be read.
    pub waits_in: Option<String>,
    /// `true` if a thread slept uninterruptibly in three samples, taken over two seconds.
    pub is_stuck: bool,
    /// Processor time, in ticks, between two samples taken a second apart. `None` if the process
    /// was not sampled.
    pub busy_lately: Option<u64>,
}

impl Process {
    /// Returns the command line, cut to `width` characters. If arguments are hidden, returns the
    /// program alone.
    pub fn command(&self, width: usize) -> String {
        let text = match self.arguments.as_slice() {
            [] => self.comm.clone(),
            [program, ..] if self.hides_arguments => {
                let program = program.split_whitespace().next().unwrap_or_default();
                program.rsplit('/').next().unwrap_or_default().to_owned()
            }
            [program, rest @ ..] => {
                let program = program.rsplit('/').next().unwrap_or(program);
                [program]
                    .into_iter()
                    .chain(rest.iter().map(String::as_str))
                    .collect::<Vec<_>>()
                    .join(" ")
            }
        };
        gpuheap_text::cut(&text, width)
    }

    /// Returns `true` if the name, or a part of the command line, contains `text`.
    pub fn runs(&self, text: &str) -> bool {
        self.comm.contains(text) || self.arguments.iter().any(|argument| argument.contains(text))
    }

    /// Returns `true` if the process inherited its descriptors and never used a device itself. Such
    /// a process has CUDA's library from its parent, and either no mapping of a device or no thread
    /// of the driver.
    pub fn only_inherited(&self) -> bool {
        let has_mapping = self.maps.iter().any(|name| device(name).is_some());
        self.has_loaded("libcuda.so") && (!has_mapping || self.has_cuda_thread == Some(false))
    }

    /// Returns `true` if the process has loaded NVML but no CUDA library: it only watches devices.
    pub fn only_watches(&self) -> bool {
        self.has_loaded("libnvidia-ml.so") && !self.has_loaded("libcuda.so")
    }

    /// Returns `true` if the process has the device with the number `minor` open. If `minor` is
    /// unknown, returns `false`.
    pub fn has_open(&self, minor: Option<u32>) -> bool {
        let file = minor.map(device_file);
        self.holds.iter().any(|(_, held)| Some(held) == file.as_ref())
    }

    /// Returns the number of contexts that the process has on the device with the number `minor`.
    /// If the process's mappings do not show contexts, returns 0.
    pub fn contexts_on(&self, minor: Option<u32>) -> usize {
        let file = minor.map(device_file);
        file.and_then(|file| self.contexts.get(&file).copied()).unwrap_or(0)
    }

    /// Returns `true` if a library is loaded whose name begins with `library`.
    pub fn has_loaded(&self, library: &str) -> bool {
        self.maps.iter().any(|name| name.starts_with(library))
    }
}

fn device_file(minor: u32) -> String {
    format!("/dev/nvidia{minor}")
}

impl fmt::Display for Process {
    /// Writes the pid and the start of the command line: `pid 4188 (python3 w.py)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pid {} ({})", self.pid, self.command(30))
    }
}

/// Process, as the first pass over all processes reads it.
struct Seen {
    pid: u32,
    stat: Stat,
    holds: Vec<(u32, String)>,
    drives: BTreeSet<String>,
    is_readable: bool,
}

#[derive(Default)]
pub(super) struct Scan {
    pub(super) processes: Vec<Process>,
    /// Pids of all visible processes, with their sessions.
    pub(super) visible: BTreeMap<u32, u32>,
    /// Number of processes whose descriptors could not be read; `None` if no process was read.
    pub(super) unreadable: Option<usize>,
}

/// Reads the processes that are in `listed`, hold a device, or descend from one of these.
pub(super) fn scan(source: &Arc<dyn Source>, listed: &[u32], uptime: f64) -> Scan {
    let names = source.list("/proc").unwrap_or_default();
    let mut seen: Vec<Seen> = names
        .iter()
        .filter_map(|name| name.parse().ok())
        .filter_map(|pid: u32| read_seen(&**source, pid))
        .collect();
    seen.sort_by_key(|process| process.pid);
    let visible = seen.iter().map(|process| (process.pid, process.stat.session)).collect();
    let unreadable = seen.iter().filter(|process| !process.is_readable).count();
    // This process is no holder: it may keep NVML open, and NVML keeps every device file open.
    let own = source.link("/proc/self").ok().and_then(|pid| pid.parse().ok());
    let is_wanted = |process: &Seen| {
        let stat = &process.stat;
        (!process.holds.is_empty() && Some(process.pid) != own)
            || listed.contains(&process.pid)
            || listed.contains(&stat.parent)
            || (listed.contains(&stat.group) && stat.group != 0)
            || (listed.contains(&stat.session) && stat.session != 0)
    };
    let passwd = source.read_text("/etc/passwd");
    let processes = seen
        .into_iter()
        .filter(is_wanted)
        .map(|process| describe(source, process, uptime, &passwd))
        .collect();
    Scan { processes, visible, unreadable: Some(unreadable) }
}

/// Returns the listed processes and their parents. For processes in `known`, reads only the state.
pub(super) fn reread(
    source: &Arc<dyn Source>,
    mut known: Vec<Process>,
    listed: &[u32],
) -> Vec<Process> {
    let uptime = uptime_seconds(&**source);
    let mut passwd = None;
    let mut found = BTreeMap::new();
    let mut wanted: Vec<(u32, bool)> = listed.iter().map(|&pid| (pid, true)).collect();
    while let Some((pid, is_listed)) = wanted.pop() {
        let Some(stat) = stat(&**source, pid).filter(|_| !found.contains_key(&pid)) else {
            continue;
        };
        if is_listed && stat.parent > 1 {
            wanted.push((stat.parent, false));
        }
        let is_same = |one: &Process| (one.pid, one.start_ticks) == (pid, stat.start_ticks);
        let process = match known.iter().position(is_same) {
            Some(at) => Process {
                state: stat.state,
                parent: stat.parent,
                busy_ticks: stat.busy_ticks,
                age_seconds: age_seconds(uptime, stat.start_ticks),
                ..known.swap_remove(at)
            },
            None => {
                let (holds, drives) = Default::default();
                let seen = Seen { pid, stat, holds, drives, is_readable: false };
                let passwd = passwd.get_or_insert_with(|| source.read_text("/etc/passwd"));
                describe(source, seen, uptime, passwd)
            }
        };
        found.insert(pid, process);
    }
    found.into_values().collect()
}

/// Reads `/proc/PID/stat`.
pub(super) fn stat(source: &dyn Source, pid: u32) -> Option<Stat> {
    Stat::parse(&source.read_text(&format!("/proc/{pid}/stat")))
}

fn read_seen(source: &dyn Source, pid: u32) -> Option<Seen> {
    let stat = stat(source, pid)?;
    let folder = format!("/proc/{pid}/fd");
    let (numbers, is_readable) = match source.list(&folder) {
        Ok(numbers) => (numbers, true),
        // A missing folder means no descriptors, because a recording contains no empty folders.
        Err(skipped) => (Vec::new(), skipped.why == Why::Missing),
    };
    let mut holds = Vec::new();
    let mut drives = BTreeSet::new();
    for number in &numbers {
        let Ok(target) = source.link(&format!("{folder}/{number}")) else { continue };
        drives.extend(windows_drive(&target).map(str::to_owned));
        if let (Some(file), Ok(number)) = (device(&target), number.parse()) {
            holds.push((number, file));
        }
    }
    holds.sort();
    Some(Seen { pid, stat, holds, drives, is_readable })
}

/// Reads the fields that the first pass leaves out. A read may block for as long as the process
/// blocks, so all reads share a time limit.
fn describe(source: &Arc<dyn Source>, seen: Seen, uptime: f64, passwd: &str) -> Process {
    let pid = seen.pid;
    let stat = seen.stat;
    let text = |name: &str| source.read_text(&format!("/proc/{pid}/{name}"));
    let status = text("status");
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u32>().ok()
    };
    let uid = field("Uid:");
    let cgroup = text("cgroup").lines().last().unwrap_or_default().to_owned();
    let waits_in = text("wchan").trim().to_owned();
    let details = read_details(source, pid);
    Process {
        pid,
        comm: stat.comm,
        arguments: details.arguments,
        hides_arguments: false,
        state: stat.state,
        parent: stat.parent,
        group: stat.group,
        session: stat.session,
        terminal: stat.terminal,
        threads: stat.threads,
        busy_ticks: stat.busy_ticks,
        start_ticks: stat.start_ticks,
        age_seconds: age_seconds(uptime, stat.start_ticks),
        uid,
        user: uid.map_or_else(|| "?".to_owned(), |uid| user_name(passwd, uid)),
        tracer: field("TracerPid:").unwrap_or(0),
        container: container(&cgroup),
        cgroup,
        holds: seen.holds,
        drives: seen.drives,
        is_readable: seen.is_readable,
        has_cuda_thread: has_cuda_thread(&**source, pid),
        maps: details.maps.files,
        contexts: details.maps.contexts,
        shared_anonymous: details.maps.shared_anonymous,
        environment: details.environment,
        waits_in: (!waits_in.is_empty() && waits_in != "0").then_some(waits_in),
        is_stuck: false,
        busy_lately: None,
    }
}

/// Returns the seconds since a start.
fn age_seconds(uptime: f64, start_ticks: u64) -> u64 {
    (uptime - start_ticks as f64 / 100.0).max(0.0) as u64
}

/// Returns `true` if a thread has a name that the CUDA driver gives, such as `cuda-EvtHandlr` or
/// `cuda00001400006`. Returns `None` if the threads cannot be read.
pub(super) fn has_cuda_thread(source: &dyn Source, pid: u32) -> Option<bool> {
    let folder = format!("/proc/{pid}/task");
    let threads = source.list(&folder).ok()?;
    let is_of_cuda = |thread: &String| {
        let name = source.read(&format!("{folder}/{thread}/comm"));
        name.is_ok_and(|name| name.starts_with(b"cuda"))
    };
    Some(threads.iter().take(4096).any(is_of_cuda))
}

/// Contents of the files that can block.
#[derive(Default)]
struct Details {
    arguments: Vec<String>,
    environment: BTreeMap<String, String>,
    maps: Maps,
}

fn read_details(source: &Arc<dyn Source>, pid: u32) -> Details {
    let read = move |source: &dyn Source| {
        let text = |name: &str| source.read_text(&format!("/proc/{pid}/{name}"));
        let words = |text: String| -> Vec<String> {
            text.trim_end_matches(['\0', '\n']).split('\0').map(str::to_owned).collect()
        };
        let mut arguments = words(text("cmdline"));
        arguments.retain(|argument| !argument.is_empty());
        let environment = words(text("environ"))
            .iter()
            .filter_map(|line| line.split_once('='))
            .filter(|(name, _)| is_kept_variable(name))
            .map(|(name, value)| (name.to_owned(), value.trim_end().to_owned()))
            .collect();
        Details { arguments, environment, maps: Maps::parse(&text("maps")) }
    };
    limited(source, Duration::from_millis(500), read).unwrap_or_default()
}

/// Takes two more samples, a second apart, of processes that may be stuck or idle.
pub(super) fn sample(source: &dyn Source, processes: &mut [Process]) {
    let is_stuck = |pid: u32| {
        let folder = format!("/proc/{pid}/task");
        let threads = source.list(&folder).unwrap_or_default();
        threads.iter().take(4096).any(|thread| {
            let text = source.read_text(&format!("{folder}/{thread}/stat"));
            Stat::parse(&text).is_some_and(|stat| stat.state == 'D')
        })
    };
    let mut stuck: Vec<u32> = processes
        .iter()
        .filter(|process| process.state == 'D' || is_stuck(process.pid))
        .map(|process| process.pid)
        .collect();
    let has_idle = processes.iter().any(|process| process.runs("ipykernel"));
    let samples = if stuck.is_empty() { usize::from(has_idle) } else { 2 };
    for _ in 0..samples {
        source.pause(Duration::from_secs(1));
        stuck.retain(|&pid| is_stuck(pid));
    }
    for process in processes {
        process.is_stuck = stuck.contains(&process.pid);
        if samples > 0 {
            process.busy_lately = stat(source, process.pid)
                .map(|stat| stat.busy_ticks.saturating_sub(process.busy_ticks));
        }
    }
}
