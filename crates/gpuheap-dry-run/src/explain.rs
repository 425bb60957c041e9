//! Reads the trace of a run. Finds the holders of memory at the peak, the memory that the program
//! needs, and remedies.

use std::collections::BTreeMap;

use gpuheap_replay::Program;
use gpuheap_replay::cards::{Card, Class};
use gpuheap_replay::moment::Moment;
use gpuheap_replay::replay::{DeviceChoice, Options, Silent};
use gpuheap_replay::run::{TraceReport, replay};
use gpuheap_replay::verdict::{RemedyKind, Way};
use gpuheap_trace::{Frame, Op, ReadOptions, Trace, read};

use crate::card::Device;
use crate::program::Run;
use crate::reports::{Owners, Process};
use crate::verdict::{CardResult, Held, KindBytes, Needs, Peak, Remedy};

/// Maximum number of holders of memory that a report lists.
const HOLDERS: usize = 5;
/// Maximum number of cards that a report lists. The smallest cards come first.
const CARDS: usize = 3;
/// Maximum number of remedies in a report.
const REMEDIES: usize = 3;

/// Least compute capability of a card that a report suggests because the traced memory fits it.
/// Older cards lack flash attention and bfloat16, so a program takes more memory there than in the
/// trace. For example, a GPT's trace from an H200 fits a T4's 16 GiB. On an emulated T4 with more
/// memory, that GPT took 182 GiB.
const LEAST_CAPABILITY: (u32, u32) = (8, 0);
/// A request is [`Absurd`] if it is at least this many times the peak of all other requests.
const ABSURD: u64 = 3;
/// Least bytes of an [`Absurd`] request. Libraries take workspaces of up to 32 MiB.
const LEAST_ABSURD: u64 = 64 << 20;

/// A request that far exceeds the peak of all other requests. The program may have computed its
/// size from a value that the dry run chose in place of a kernel's result.
pub(crate) struct Absurd {
    /// Requested bytes.
    pub(crate) bytes: u64,
    /// Peak of the live bytes of all requests whose size is not `bytes`.
    pub(crate) others: u64,
    /// File, line and function.
    pub(crate) line: String,
}

/// Trace of the device on which a run had its highest peak.
pub(crate) struct Recording {
    pub(crate) trace: Trace,
    /// Ordinal of the device.
    pub(crate) device: u32,
    /// Optimiser step in which the peak occurred, counted from one; `None` if no step completed.
    step: Option<u64>,
    /// Peak bytes of device memory outside PyTorch's allocator: context, kernels and libraries.
    pub(crate) beside: u64,
    /// Peak of bytes that PyTorch's allocator reserved.
    reserved: u64,
    /// Owners of memory at the peak; `None` if the Python hook did not find them.
    owners: Option<Owners>,
    /// Snapshot file that contains the trace.
    pub(crate) file: std::path::PathBuf,
}

impl Recording {
    /// Returns the bytes of the parameters in the largest module that the model repeats, such as a
    /// transformer block.
    pub(crate) fn largest_block(&self) -> u64 {
        self.owners.as_ref().map_or(0, |owners| owners.largest_block)
    }
}

/// Finds the trace of the device with the highest peak. Returns `None` if no process recorded a
/// snapshot, or the snapshot cannot be read.
pub(crate) fn read_recording(run: &Run) -> Option<Recording> {
    let peaks = run.processes.iter().filter(|process| process.snapshot.is_some());
    let peaks = peaks.flat_map(|process| {
        let devices = process.torch.iter().flat_map(|torch| &torch.devices);
        devices.map(move |device| (process, device))
    });
    let (process, peak) = peaks.max_by_key(|(_, device)| device.allocated)?;
    let file = process.snapshot.clone()?;
    let traces = read(&file, &ReadOptions::default()).ok()?;
    let trace = traces.into_iter().find(|trace| trace.device().unwrap_or(0) == peak.device)?;
    let steps = process.torch.as_ref().map_or(0, |torch| torch.steps);
    Some(Recording {
        trace,
        device: peak.device,
        step: (steps > 0).then_some(peak.step),
        beside: memory_beside(process, peak.device, peak.reserved, run),
        reserved: peak.reserved,
        owners: process.owners.iter().find(|owners| owners.device == peak.device).cloned(),
        file,
    })
}

/// Returns the largest request of a trace if it is at least [`ABSURD`] times the peak of all other
/// requests. `reads` has the lines at which a size depended on a value that the dry run chose.
/// Returns `None` if none of these lines is in the function that made the request.
pub(crate) fn absurd_request(recording: &Recording, reads: &[&str]) -> Option<Absurd> {
    let trace = &recording.trace;
    let requests = trace.events().iter().filter_map(|event| match event.op {
        Op::Allocate { bytes, .. } => Some((bytes, event.stack)),
        _ => None,
    });
    let (bytes, stack) = requests.max_by_key(|&(bytes, _)| bytes)?;
    let is_own = |frame: &&Frame| !frame.file.contains("/torch/") && !frame.file.starts_with('<');
    let Frame { function, file, line } = trace.stack(stack).find(is_own)?;
    let (begin, end) = (format!("{file}:"), format!(" in {function}"));
    if !reads.iter().any(|read| read.starts_with(&begin) && read.ends_with(&end)) {
        return None;
    }
    // Sums the other requests. Leaves out all requests of `bytes` bytes, because a loop may make
    // the largest request in each round.
    let mut live = BTreeMap::new();
    let (mut sum, mut others) = (0_u64, 0_u64);
    for event in trace.events() {
        match event.op {
            Op::Allocate { allocation, bytes: one } if one != bytes => {
                live.insert(allocation, one);
                sum += one;
                others = others.max(sum);
            }
            Op::Free { allocation } => sum -= live.remove(&allocation).unwrap_or(0),
            _ => {}
        }
    }
    let is_absurd = bytes >= LEAST_ABSURD && bytes >= others.max(1).saturating_mul(ABSURD);
    is_absurd.then(|| Absurd { bytes, others, line: format!("{begin}{line}{end}") })
}

fn memory_beside(process: &Process, device: u32, reserved: u64, run: &Run) -> u64 {
    let driver = process.driver.as_ref();
    let in_use = driver.and_then(|driver| Some(driver.devices.get(device as usize)?.peak_in_use));
    let beside = in_use.map_or(0, |in_use| in_use.saturating_sub(reserved));
    beside.max(run.device.context_bytes)
}

/// Returns the holders of memory at the peak.
pub(crate) fn find_peak(run: &Run, recording: &Recording) -> Option<Peak> {
    let trace = &recording.trace;
    let summary = trace.summary();
    let at = summary.peak_event?;
    let moment = Moment::after(trace, &Program::from_trace(trace), at + 1);
    let held = |holder: &gpuheap_trace::Holder| Held {
        line: match moment.has_stacks {
            true => holder.name.clone(),
            false => format!("in blocks of {}", holder.name),
        },
        bytes: holder.bytes,
        blocks: holder.blocks,
        ..Held::default()
    };
    let owners = recording.owners.clone().unwrap_or_default();
    Some(Peak {
        card: run.device.card.name.to_owned(),
        device: recording.device,
        event: moment.event,
        events: summary.events,
        step: recording.step,
        live: moment.live,
        holders: match owners.holders.is_empty() {
            true => moment.holders.iter().take(HOLDERS).map(held).collect(),
            false => owners.holders,
        },
        kinds: kinds(owners.kinds, recording),
        modules: owners.modules,
    })
}

/// Returns the memory of the whole device by kind: the kinds of PyTorch's live blocks, reserved
/// memory without live blocks, and memory outside PyTorch's allocator.
fn kinds(live: Vec<KindBytes>, recording: &Recording) -> Vec<KindBytes> {
    if live.is_empty() {
        return live;
    }
    let sum = live.iter().map(|kind| kind.bytes).sum();
    let kind = |kind: &str, bytes| KindBytes { kind: kind.to_owned(), bytes, blocks: 0 };
    let others = [
        kind("fragmentation", recording.reserved.saturating_sub(sum)),
        kind("cuda", recording.beside),
    ];
    live.into_iter().chain(others).collect()
}

/// Replays the trace on a device. Returns `None` if the replay fails.
pub(crate) fn replay_on(recording: &Recording, device: &Device) -> Option<TraceReport> {
    let options = Options {
        device: DeviceChoice::Memory {
            profile: None,
            bytes: (device.total_bytes - device.margin_bytes)
                .saturating_sub(recording.beside)
                .max(2 << 20),
            typed: device.card.name.to_owned(),
        },
        ..Options::default()
    };
    replay(std::slice::from_ref(&recording.trace), &options, &Silent).ok()?.pop()
}

/// Returns the memory that the program needs; `None` if no device is large enough. Names only cards
/// of the run's compute capability. On other cards, other kernels run and take other amounts of
/// memory.
pub(crate) fn find_needs(report: &TraceReport, recording: &Recording, run: &Run) -> Option<Needs> {
    let needs = report.verdict.needs?;
    let mut cards: Vec<_> = cards_like(run.device.card)
        .filter(|card| card.usable_bytes >= needs.least + code_bytes(recording.beside, run))
        .filter(|card| {
            let fit = report.verdict.fits.iter().find(|fit| fit.card == *card);
            fit.is_none_or(|fit| fit.way == Some(Way::AsIs))
        })
        .collect();
    cards.sort_by_key(|card| card.usable_bytes);
    Some(Needs {
        least: needs.least,
        most: needs.most,
        beside: recording.beside,
        capability: run.device.card.capability,
        cards: cards.iter().take(CARDS).map(|card| card.name.to_owned()).collect(),
        smaller: None,
    })
}

/// Returns the memory of kernels and libraries. Leaves out the context, which depends on the card.
fn code_bytes(beside: u64, run: &Run) -> u64 {
    beside.saturating_sub(run.device.context_bytes)
}

/// Finds the smallest card that has enough memory, of any compute capability from
/// [`LEAST_CAPABILITY`] on. Leaves out cards on which the program did not fit. Returns `None` if
/// the program already ran on the found card, or if `needs` already names a card that is no larger.
pub(crate) fn find_smaller(needs: &Needs, run: &Run, tried: &[CardResult]) -> Option<String> {
    let least = needs.least + code_bytes(needs.beside, run);
    let result = |card: &Card| tried.iter().find(|result| result.card == card.name);
    let cards = gpuheap_replay::cards::all().iter().filter(|card| {
        card.class != Class::MigSlice
            && card.capability >= LEAST_CAPABILITY
            && card.usable_bytes >= least
            && result(card).is_none_or(|result| result.outcome.is_fit())
    });
    let smallest = cards.min_by_key(|card| card.usable_bytes)?;
    let of_run = needs.cards.first().and_then(|name| gpuheap_replay::cards::find(name).ok());
    let is_smaller = of_run.is_none_or(|card| smallest.vendor_gb < card.vendor_gb);
    (is_smaller && result(smallest).is_none()).then(|| smallest.name.to_owned())
}

/// Returns all cards with the compute capability of `card`, except MIG slices.
pub(crate) fn cards_like(card: &Card) -> impl Iterator<Item = &'static Card> {
    let capability = card.capability;
    gpuheap_replay::cards::all()
        .iter()
        .filter(move |card| card.capability == capability && card.class != Class::MigSlice)
}

/// Removes from `needs` the cards on which the program ran and did not fit.
pub(crate) fn remove_failing_cards(needs: &mut Needs, tried: &[CardResult]) {
    needs.cards.retain(|name| {
        tried.iter().find(|card| card.card == *name).is_none_or(|card| card.outcome.is_fit())
    });
}

/// Returns settings of PyTorch's allocator with which the program fits, or takes less memory.
pub(crate) fn find_remedies(report: &TraceReport) -> Vec<Remedy> {
    let fits = report.verdict.gets_through;
    let settings = report.verdict.remedies.iter().filter(|remedy| {
        remedy.kind == RemedyKind::Setting && !remedy.is_own_heap && remedy.python.is_none()
    });
    settings
        .take(REMEDIES)
        .map(|remedy| Remedy {
            line: remedy.line.clone(),
            reserved: remedy.reserved.map(|range| range.high),
            makes_it_fit: !fits,
        })
        .collect()
}
