//! Facts about a machine, read once from a source.

mod examine;
mod host;
mod maps;
mod probe;
mod proc;
mod process;
mod redaction;
mod windows;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpuheap_publish::{Detail, Published};

pub use self::examine::Message;
pub use self::host::Host;
use self::probe::Repeated;
pub use self::process::Process;
pub(crate) use self::redaction::Redaction;
pub use self::windows::{Windows, WindowsProcess};
use crate::facts::{self, Skipped, Source, Why};
pub use crate::facts::{CudaProbe, Gpu, Kind, Listed, Nvml, NvmlFailure, Outcome, PROBES};
use crate::source::Here;

/// Facts about a machine.
#[derive(Debug, Clone)]
pub struct Machine {
    /// NVML's answers.
    ///
    /// # Errors
    ///
    /// Contains the reason if NVML cannot be loaded or does not answer in time.
    pub nvml: Result<Nvml, Skipped>,
    /// The host.
    pub host: Host,
    /// Processes that NVML lists or that hold a device, and their descendants, sorted by pid.
    pub processes: Vec<Process>,
    /// All visible pids, each with its session.
    pub visible: BTreeMap<u32, u32>,
    /// Number of visible processes whose descriptors could not be read; `None` if no process was
    /// read.
    pub unreadable: Option<usize>,
    /// Processes that publish their memory, by pid.
    pub programs: Vec<Published>,
    /// The kernel's log. This field and the next ones, up to `shared`, are empty before
    /// [`examine`](Machine::examine).
    pub log: Vec<Message>,
    /// Paths of `libcuda.so.1`, in the order in which programs find them.
    pub libcuda: Vec<String>,
    /// Ids of Docker's running containers; `None` if unknown.
    pub running_containers: Option<Vec<String>>,
    /// Ids of Slurm's jobs; `None` if unknown.
    pub running_jobs: Option<Vec<String>>,
    /// Bytes of page cache on each NUMA node that is a device's memory.
    pub device_nodes: BTreeMap<u32, u64>,
    /// Processes whose memory a checkpoint moved to the host, each with its name.
    pub checkpointed: Vec<(u32, String)>,
    /// Facts that Windows reports. `None` if this is not WSL2, or if
    /// [`read_windows`](Machine::read_windows) was not called.
    pub windows: Option<Windows>,
    /// Results of probing CUDA; empty before [`probe_cuda`](Machine::probe_cuda).
    pub cuda: Vec<CudaProbe>,
    /// Pairs of processes that share an open file of a device.
    pub shared: Vec<(u32, u32)>,
    /// Probes that were skipped, each with the reason.
    pub skipped: Vec<(&'static str, Skipped)>,
    /// Time of the last [`refresh`](Machine::refresh) that read processes.
    refreshed: Option<Instant>,
    probes: Probes,
    source: Arc<dyn Source>,
}

/// Probes that [`refresh`](Machine::refresh) repeats. Copies of a machine share them.
#[derive(Debug, Clone, Default)]
struct Probes {
    nvml: Repeated,
    processes: Repeated,
}

impl std::fmt::Debug for dyn Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Source")
    }
}

impl Host {
    /// Reads the facts of this host alone. Blocks for two seconds at most, and usually for one
    /// millisecond.
    ///
    /// # Errors
    ///
    /// Returns the reason if the host does not answer in time.
    pub fn here() -> Result<Host, Skipped> {
        let source: Arc<dyn Source> = Arc::new(Here);
        probe::limited(&source, Duration::from_secs(2), Host::read)
    }
}

impl Machine {
    /// Reads devices, processes, and the heaps that programs publish on sockets. Blocks for 25
    /// seconds at most, and usually for some 50 ms.
    pub fn read(source: impl Source) -> Machine {
        let mut machine = Machine::read_devices(source);
        machine.read_programs(Detail::Heaps);
        machine
    }

    /// Reads devices and processes, but not the heaps that programs publish on sockets. Blocks for
    /// 15 seconds at most.
    pub fn read_devices(source: impl Source) -> Machine {
        Machine::from_source(Arc::new(source), Probes::default())
    }

    /// Reads the machine again from its source, and also the heaps that programs publish.
    pub fn reread(&self, detail: Detail) -> Machine {
        let mut machine = Machine::from_source(self.source.clone(), self.probes.clone());
        machine.read_programs(detail);
        machine
    }

    fn from_source(source: Arc<dyn Source>, probes: Probes) -> Machine {
        let mut skipped = Vec::new();
        let nvml = limited_nvml(&source, &probes.nvml);
        if let Err(reason) = &nvml {
            skipped.push(("nvml", reason.clone()));
        }
        let host = probe::limited(&source, Duration::from_secs(2), Host::read);
        let host = host.unwrap_or_else(|reason| {
            skipped.push(("host", reason));
            Host::default()
        });
        let scan = scan(&source, &nvml, host.uptime_seconds).unwrap_or_else(|reason| {
            skipped.push(("processes", reason));
            process::Scan::default()
        });
        Machine {
            nvml,
            host,
            processes: scan.processes,
            visible: scan.visible,
            unreadable: scan.unreadable,
            programs: Vec::new(),
            log: Vec::new(),
            libcuda: Vec::new(),
            running_containers: None,
            running_jobs: None,
            device_nodes: BTreeMap::new(),
            checkpointed: Vec::new(),
            windows: None,
            cuda: Vec::new(),
            shared: Vec::new(),
            skipped,
            refreshed: None,
            probes,
            source,
        }
    }

    /// Reads the heaps that programs publish on sockets. Blocks for 10 seconds at most.
    pub fn read_programs(&mut self, detail: Detail) {
        self.skipped.retain(|(probe, _)| *probe != "programs");
        let limit = Duration::from_secs(10);
        let programs = probe::limited(&self.source, limit, move |source| source.programs(detail));
        self.programs = match programs.and_then(|programs| programs) {
            Ok(lines) => lines.lines().filter_map(|line| serde_json::from_str(line).ok()).collect(),
            // Recordings of earlier versions lack published heaps. This is no failure.
            Err(reason) if reason.why == Why::Missing => Vec::new(),
            Err(reason) => {
                self.skipped.push(("programs", reason));
                Vec::new()
            }
        };
    }

    /// Reads NVML's figures again, and the processes that are new in NVML's lists, for a display
    /// that is drawn repeatedly. Does not read mappings, environments and descriptors of known
    /// processes again, and reads their states every two seconds. Blocks for 13 seconds at most.
    pub fn refresh(&mut self) {
        self.nvml = limited_nvml(&self.source, &self.probes.nvml);
        let listed = listed(&self.nvml);
        let is_known = listed.iter().all(|&pid| self.process(pid).is_some());
        let is_fresh = |time: Instant| time.elapsed() < Duration::from_secs(2);
        if is_known && self.refreshed.is_some_and(is_fresh) {
            return;
        }
        let (source, known) = (self.source.clone(), self.processes.clone());
        let read = move |_: &dyn Source| process::reread(&source, known, &listed);
        let limit = Duration::from_secs(5);
        if let Ok(processes) = self.probes.processes.limited(&self.source, limit, read) {
            self.processes = processes;
            self.refreshed = Some(Instant::now());
        }
    }

    /// Reads the further facts that rules need. Samples states a second time if they may be
    /// temporary. Blocks for 20 seconds at most, and for less than one second on a healthy machine.
    pub fn examine(&mut self) {
        self.reread_unaccounted();
        process::sample(&*self.source, &mut self.processes);
        let source = self.source.clone();
        let log = probe::limited(&source, Duration::from_secs(5), |source| source.kernel_log());
        let log = log.and_then(|log| log);
        self.log = self.value_or_skip("kernel log", log.map(|log| examine::messages(&log)));
        let libcuda = if self.host.is_wsl { examine::libcuda(&*source) } else { Ok(Vec::new()) };
        self.libcuda = self.value_or_skip("ldconfig", libcuda);
        let containers = examine::containers(&*source, &self.processes);
        self.running_containers = self.value_or_skip("docker", containers.transpose());
        let jobs = examine::jobs(&*source, &self.processes);
        self.running_jobs = self.value_or_skip("squeue", jobs.transpose());
        self.device_nodes = examine::device_nodes(&*source, self.devices());
        let shared = examine::shared(&*source, &self.processes);
        let (shared, left_out) = self.value_or_skip("kcmp", shared);
        self.shared = shared;
        if let Some(reason) = left_out {
            self.skipped.push(("kcmp", reason));
        }
        // Without a device, no process can be checkpointed, so no process is examined.
        let visible = if self.devices().is_empty() { None } else { Some(self.visible.keys()) };
        let visible: Vec<u32> = visible.into_iter().flatten().copied().collect();
        let holders = self.processes.iter().filter(|process| !process.holds.is_empty());
        let holders: Vec<u32> = holders.map(|process| process.pid).collect();
        let checkpointed = probe::limited(&source, Duration::from_secs(5), move |source| {
            examine::checkpointed(source, &visible, &holders)
        });
        self.checkpointed =
            self.value_or_skip("cuda-checkpoint", checkpointed.and_then(|found| found));
        self.read_windows();
        // On a live machine, an empty command runs no probe of CUDA. A recording returns its
        // recorded results for any command.
        if let Ok(text) = self.source.cuda(&[]) {
            self.cuda = facts::parse_probes(&text, self.devices());
        }
    }

    /// Probes CUDA by running `command`, a program with its arguments. Kills the program after 30
    /// seconds. The program writes a [`CudaProbe`] on each line, as `gpuheap probe-cuda` does.
    /// While the program runs, its context takes memory of the device. Blocks for 31 seconds at
    /// most.
    pub fn probe_cuda(&mut self, command: &[String]) {
        let asked = self.source.cuda(command);
        let probes = asked.map(|text| facts::parse_probes(&text, self.devices()));
        self.cuda = self.value_or_skip("cuda", probes);
    }

    /// Reads Windows' facts about the card, under WSL2. Blocks for 8 seconds at most, and usually
    /// for one to three seconds.
    pub fn read_windows(&mut self) {
        if !self.host.is_wsl || self.windows.is_some() {
            return;
        }
        let asked = probe::limited(&self.source, Duration::from_secs(8), Windows::read);
        let asked = asked.and_then(|asked| asked);
        self.windows = self.value_or_skip("windows", asked.map(Some));
    }

    /// If much memory is unaccounted, reads NVML up to twice more, half a second apart. A process
    /// that starts or ends may be missing from one of NVML's lists. Keeps the reading with the
    /// least unaccounted memory, and reads the processes that this reading lists.
    fn reread_unaccounted(&mut self) {
        for _ in 0..2 {
            let unaccounted = self.unaccounted();
            if unaccounted <= 512 << 20 {
                return;
            }
            self.source.pause(Duration::from_millis(500));
            let before = self.nvml.clone();
            self.nvml = limited_nvml(&self.source, &self.probes.nvml);
            if self.nvml.is_err() || self.unaccounted() > unaccounted {
                self.nvml = before;
            } else if let Ok(scan) = scan(&self.source, &self.nvml, self.host.uptime_seconds) {
                self.processes = scan.processes;
                self.visible = scan.visible;
                self.unreadable = scan.unreadable;
            }
        }
    }

    fn unaccounted(&self) -> i64 {
        let accounts = self.devices().iter().map(|gpu| {
            let listed = gpu.processes.iter().filter_map(|listed| listed.bytes);
            let listed = listed.fold(0, u64::saturating_add);
            i64::try_from(gpu.used.saturating_sub(listed)).unwrap_or(i64::MAX)
        });
        accounts.max().unwrap_or(0)
    }

    /// Returns the result of a probe. If the probe was skipped, keeps the reason and returns the
    /// default.
    fn value_or_skip<T: Default>(&mut self, probe: &'static str, looked: Result<T, Skipped>) -> T {
        looked.unwrap_or_else(|reason| {
            self.skipped.push((probe, reason));
            T::default()
        })
    }

    /// Returns the start of a process, in ticks of 10 ms after boot; `None` if it has ended.
    pub(crate) fn start_ticks(&self, pid: u32) -> Option<u64> {
        process::stat(&*self.source, pid).map(|stat| stat.start_ticks)
    }

    /// Returns the start of a process of this machine, in ticks of 10 ms after boot.
    pub(crate) fn start_ticks_here(pid: u32) -> Option<u64> {
        process::stat(&Here, pid).map(|stat| stat.start_ticks)
    }

    /// Returns `true` while the process with this pid and start lives on this machine.
    pub(crate) fn is_running_here(pid: u32, start_ticks: u64) -> bool {
        process::stat(&Here, pid)
            .is_some_and(|stat| stat.start_ticks == start_ticks && !matches!(stat.state, 'Z' | 'X'))
    }

    /// Returns the devices; empty if NVML does not answer.
    pub fn devices(&self) -> &[Gpu] {
        self.nvml.as_ref().map_or(&[], |nvml| &nvml.devices)
    }

    /// Returns `true` if the driver lists a process, on any device.
    pub fn is_listed(&self, pid: u32) -> bool {
        self.devices().iter().flat_map(|gpu| &gpu.processes).any(|listed| listed.pid == pid)
    }

    /// Returns a process of [`processes`](Machine::processes).
    pub fn process(&self, pid: u32) -> Option<&Process> {
        self.processes
            .binary_search_by_key(&pid, |process| process.pid)
            .ok()
            .map(|at| &self.processes[at])
    }

    /// Returns `true` if all pids that the driver lists belong to this PID namespace. Then a listed
    /// pid without a process means that the process has ended.
    ///
    /// From 535.113.01 on, the driver keeps the kernel's own record of each client's process. The
    /// driver gives the pid in the caller's namespace, and leaves out processes without a pid there
    /// (`os_find_ns_pid` in the open kernel modules). This is not so in gVisor (kernel release
    /// 4.4.0), where the caller is the sandbox, nor under WSL2, where the driver is Windows' own.
    pub fn lists_own_pids(&self) -> bool {
        const FIRST_DRIVER: [u32; 2] = [535, 113];
        let driver = self.nvml.as_ref().map_or("", |nvml| nvml.driver.as_str());
        let mut numbers = driver.split('.').map_while(|part| part.parse::<u32>().ok());
        let version = [numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)];
        let is_sandbox = self.host.kernel == "4.4.0" || self.host.kernel.contains("gvisor");
        let translates = version >= FIRST_DRIVER && !is_sandbox && !self.host.is_wsl;
        self.host.is_first_namespace || translates
    }

    /// Returns `true` if there is neither an NVIDIA device nor NVML.
    pub fn has_no_gpu(&self) -> bool {
        match &self.nvml {
            Ok(nvml) => nvml.failure.is_none() && nvml.devices.is_empty(),
            Err(skipped) => skipped.why == Why::Missing && self.host.has_no_device,
        }
    }
}

/// Reads the processes that NVML lists or that hold a device.
fn scan(
    source: &Arc<dyn Source>,
    nvml: &Result<Nvml, Skipped>,
    uptime: f64,
) -> Result<process::Scan, Skipped> {
    let listed = listed(nvml);
    let scanned = source.clone();
    probe::limited(source, Duration::from_secs(5), move |_| {
        process::scan(&scanned, &listed, uptime)
    })
}

/// Returns the pids that NVML lists.
fn listed(nvml: &Result<Nvml, Skipped>) -> Vec<u32> {
    let devices = nvml.iter().flat_map(|nvml| &nvml.devices);
    devices.flat_map(|gpu| &gpu.processes).map(|listed| listed.pid).collect()
}

fn limited_nvml(source: &Arc<dyn Source>, probe: &Repeated) -> Result<Nvml, Skipped> {
    let asked = probe.limited(source, Duration::from_secs(8), |source| source.nvml());
    asked.unwrap_or_else(|reason| Err(Skipped::new(reason.why, format!("NVML: {reason}"))))
}
