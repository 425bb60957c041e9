//! Stores the figures of devices, processes and lines of code, with their history.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use gpuheap_doctor::status::Row;
use gpuheap_publish::{HeapStatus, Published, RECORDED, Site};

use crate::history::{Growth, Series, WINDOW};
use crate::snapshot::{Examination, Snapshot};

/// Length in seconds of the history that the curves of devices and heaps show.
const KEPT: u64 = 300;

/// Everything that the screen shows.
#[derive(Debug, Clone, Default)]
pub(crate) struct Figures {
    pub(crate) snapshot: Snapshot,
    pub(crate) programs: Vec<Published>,
    pub(crate) examination: Option<Examination>,
    /// Second of the last figures.
    second: u64,
    devices: BTreeMap<Option<u32>, Series>,
    processes: BTreeMap<u32, Series>,
    heaps: BTreeMap<ProgramKey, Curves>,
    lines: BTreeMap<ProgramKey, Lines>,
}

/// Key of a program that publishes. It consists of pid, user and name.
type ProgramKey = (Option<u32>, u32, String);

/// Key of a line of code. It consists of the file with the line number, function, device and kind.
type LineKey = (String, String, String, String);

/// Live and cached bytes of a program's heaps over time.
#[derive(Debug, Clone)]
pub(crate) struct Curves {
    pub(crate) live: Series,
    pub(crate) cached: Series,
}

/// Bytes of a program's lines over time.
#[derive(Debug, Clone, Default)]
struct Lines {
    series: BTreeMap<LineKey, Series>,
    /// Time, in seconds, at which the program last published its source lines; `None` if it left
    /// out some lines.
    complete: Option<u64>,
}

/// Figures that the screen shows for a process, summed over its devices.
#[derive(Debug, Clone, Default)]
pub(crate) struct ProcessFigures {
    pub(crate) pid: Option<u32>,
    /// NVML's indices of its devices.
    pub(crate) devices: Vec<u32>,
    /// Bytes that the driver reports for the process; `None` if it reports none.
    pub(crate) bytes: Option<u64>,
    pub(crate) growth: Option<Growth>,
    pub(crate) user: String,
    pub(crate) command: String,
    pub(crate) age_seconds: Option<u64>,
    pub(crate) parent: Option<u32>,
    /// Index in [`Figures::programs`], if the process publishes.
    pub(crate) program: Option<usize>,
    /// Live bytes of the process's heaps; `None` if the process published none.
    pub(crate) live: Option<u64>,
    /// Cached bytes of the process's heaps; `None` if the process published none.
    pub(crate) cached: Option<u64>,
    /// Number of ancestors in the tree.
    pub(crate) depth: usize,
}

/// Line of a program, with its growth.
#[derive(Debug, Clone)]
pub(crate) struct GrownLine<'a> {
    pub(crate) site: &'a Site,
    pub(crate) growth: Option<Growth>,
}

impl Figures {
    /// Stores the devices and processes that were read `second` seconds after the start.
    pub(crate) fn take_snapshot(&mut self, second: u64, snapshot: Snapshot) {
        self.second = self.second.max(second);
        let mut sums: BTreeMap<u32, u64> = BTreeMap::new();
        for account in &snapshot.accounts {
            let series = self.devices.entry(account.index).or_insert_with(|| Series::new(KEPT));
            series.push(second, account.used_bytes);
            for row in &account.processes {
                let sum = sums.entry(row.pid).or_default();
                *sum = sum.saturating_add(row.bytes.unwrap_or(0));
            }
        }
        self.processes.retain(|pid, _| sums.contains_key(pid));
        for (pid, bytes) in sums {
            let series = self.processes.entry(pid).or_insert_with(|| Series::new(WINDOW));
            series.push(second, bytes);
        }
        self.snapshot = snapshot;
    }

    /// Stores the figures that programs publish, and appends their live and cached bytes to curves.
    pub(crate) fn take_programs(&mut self, second: u64, programs: Vec<Published>) {
        self.second = self.second.max(second);
        let keys: BTreeSet<ProgramKey> = programs.iter().map(key).collect();
        self.heaps.retain(|key, _| keys.contains(key));
        self.lines.retain(|key, _| keys.contains(key));
        for program in programs.iter().filter(|program| program.status.is_some()) {
            let curves = self
                .heaps
                .entry(key(program))
                .or_insert_with(|| Curves { live: Series::new(KEPT), cached: Series::new(KEPT) });
            curves.live.push(second, sum(program, |heap| heap.live));
            curves.cached.push(second, sum(program, |heap| heap.cached));
            if program.leaks.is_tracked {
                self.lines.entry(key(program)).or_default().push(second, program);
            }
        }
        self.programs = programs;
    }

    /// Returns the processes that use devices or publish heaps, sorted by memory, largest first.
    pub(crate) fn processes(&self) -> Vec<ProcessFigures> {
        let mut by_pid: BTreeMap<u32, ProcessFigures> = BTreeMap::new();
        for account in &self.snapshot.accounts {
            for row in &account.processes {
                let process = by_pid.entry(row.pid).or_insert_with(|| self.process(row));
                process.devices.extend(account.index);
                process.bytes = match (process.bytes, row.bytes) {
                    (Some(sum), Some(bytes)) => Some(sum.saturating_add(bytes)),
                    (sum, bytes) => sum.or(bytes),
                };
            }
        }
        let mut elsewhere = Vec::new();
        for (index, program) in self.programs.iter().enumerate() {
            let status = program.status.as_ref();
            let name = status.map(|status| status.program.clone()).unwrap_or_default();
            let fresh = ProcessFigures {
                pid: program.pid,
                user: program.uid.to_string(),
                command: name,
                ..ProcessFigures::default()
            };
            let process = match program.pid {
                Some(pid) => by_pid.entry(pid).or_insert(fresh),
                None => {
                    elsewhere.push(fresh);
                    let last = elsewhere.len() - 1;
                    &mut elsewhere[last]
                }
            };
            process.program = Some(index);
            if status.is_some() {
                process.live = Some(sum(program, |heap| heap.live));
                process.cached = Some(sum(program, |heap| heap.cached));
            }
            if process.devices.is_empty() {
                process.growth = self.curves(program).and_then(|curves| curves.live.growth());
            }
        }
        let mut all: Vec<ProcessFigures> = by_pid.into_values().chain(elsewhere).collect();
        all.sort_by_key(|process| (Reverse(process.bytes.or(process.live)), process.pid));
        all
    }

    fn process(&self, row: &Row) -> ProcessFigures {
        ProcessFigures {
            pid: Some(row.pid),
            growth: self.processes.get(&row.pid).and_then(Series::growth),
            user: row.user.clone().unwrap_or_else(|| "-".to_owned()),
            command: row.description(),
            age_seconds: row.age_seconds,
            parent: self.snapshot.parents.get(&row.pid).copied(),
            ..ProcessFigures::default()
        }
    }

    /// Returns the bytes in use on a device over time.
    pub(crate) fn device(&self, index: Option<u32>) -> Option<&Series> {
        self.devices.get(&index)
    }

    /// Returns the bytes of a program's heaps over time.
    pub(crate) fn curves(&self, program: &Published) -> Option<&Curves> {
        self.heaps.get(&key(program))
    }

    /// Returns a program's lines of code. Lines whose memory grows are first, the fastest at the
    /// top. Other lines follow, sorted by their bytes.
    pub(crate) fn lines<'a>(&self, program: &'a Published) -> Vec<GrownLine<'a>> {
        let lines = self.lines.get(&key(program));
        let growth = |site: &Site| lines?.series.get(&line_key(site))?.growth();
        let sites = program.leaks.sites.iter();
        let mut grown: Vec<GrownLine<'a>> =
            sites.map(|site| GrownLine { site, growth: growth(site) }).collect();
        grown.sort_by_key(|line| {
            let bytes = line.growth.map_or(0, |growth| growth.bytes.max(0));
            (Reverse(bytes), Reverse(line.site.bytes))
        });
        grown
    }
}

impl Lines {
    fn push(&mut self, second: u64, program: &Published) {
        let mut sums: BTreeMap<LineKey, u64> = BTreeMap::new();
        for site in &program.leaks.sites {
            let sum = sums.entry(line_key(site)).or_default();
            *sum = sum.saturating_add(site.bytes);
        }
        let is_complete = program.leaks.left_out == 0;
        if is_complete {
            // The program sent all its lines. So a known line that it did not send has no memory.
            for line in self.series.keys() {
                sums.entry(line.clone()).or_insert(0);
            }
        }
        for (line, bytes) in sums {
            let before = self.complete;
            let series = self.series.entry(line).or_insert_with(|| {
                let mut series = Series::new(WINDOW);
                before.into_iter().for_each(|second| series.push(second, 0));
                series
            });
            series.push(second, bytes);
        }
        self.complete = is_complete.then_some(second);
        self.series.retain(|_, series| {
            let is_old = series.last_second().is_none_or(|last| last + WINDOW < second);
            !is_old && !series.is_zero()
        });
    }
}

fn key(program: &Published) -> ProgramKey {
    let name = program.status.as_ref().map(|status| status.program.clone());
    let name = name.filter(|_| program.pid.is_none()).unwrap_or_default();
    (program.pid, program.uid, name)
}

fn line_key(site: &Site) -> LineKey {
    (site.line.clone(), site.function.clone(), site.device.clone(), site.kind.clone())
}

/// Sums a figure of a program's heaps. A recorder also counts the memory of heaps, so its figure is
/// used only if the program has no heap.
fn sum(program: &Published, figure: impl Fn(&HeapStatus) -> u64) -> u64 {
    let heaps = program.status.iter().flat_map(|status| &status.heaps);
    let is_heap = |heap: &&HeapStatus| heap.pool != RECORDED;
    let has_heap = heaps.clone().any(|heap| is_heap(&heap));
    let counted = heaps.filter(|heap| !has_heap || is_heap(heap));
    counted.map(figure).fold(0, u64::saturating_add)
}
