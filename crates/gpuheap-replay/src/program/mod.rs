//! Prepares a trace for models and heaps, and runs it through a model.

mod cleared;
mod pools;
mod reproduce;
mod speed;

use std::collections::BTreeMap;
use std::sync::OnceLock;

use gpuheap_trace::{AllocatorSettings, Op, Segment, SnapshotKeys, Trace};
use rustc_hash::FxHashSet;

use self::cleared::Cleared;
use self::pools::PrivatePools;
use crate::Reproduction;
use crate::models::torch::{Settings, Torch, Version};
use crate::models::{DriverEvent, Figures, Model, Refusal, Request, Ticket};

/// Requests and frees of a recorded program, in order.
#[derive(Debug, Clone)]
pub struct Program {
    steps: Vec<Step>,
    /// Number of steps at the start that allocate the blocks that were live before the recording.
    before: usize,
    streams: Vec<u64>,
    allocations: usize,
    /// Recorded address of each allocation.
    addresses: Vec<u64>,
    recorded: Vec<DriverEvent>,
    /// Segments held before the recording began; empty if a segment grows in place, because a model
    /// cannot begin with such a segment.
    segments_before: Vec<Segment>,
    /// Bytes held before the recording began.
    reserved_before: u64,
    settings: Option<AllocatorSettings>,
    keys: Option<SnapshotKeys>,
    /// Comparison of PyTorch's model with the recorded segments, without a memory fraction. Cached.
    unlimited: OnceLock<Option<Reproduction>>,
    /// `true` if the recording contains both frees and their completions.
    records_completion: bool,
}

/// Action of the program on a stream.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step {
    /// The event's number in the file.
    pub(crate) number: u32,
    /// Index into [`Program::streams`].
    pub(crate) stream: u32,
    pub(crate) action: Action,
}

impl Step {
    fn fails(&self) -> bool {
        matches!(self.action, Action::Fail { .. })
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Action {
    Allocate {
        allocation: u32,
        pool: u32,
        bytes: u64,
    },
    /// A free that is completed at once.
    Release {
        allocation: u32,
    },
    Free {
        allocation: u32,
    },
    Complete {
        allocation: u32,
    },
    /// A request that failed when it was recorded.
    Fail {
        bytes: u64,
    },
    /// PyTorch gave segments back, because the program called `empty_cache` or because PyTorch
    /// needed memory.
    GivenBack {
        then_taken: u64,
        is_certain: bool,
    },
}

/// Time at which a freed block ceases to be pending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Completion {
    /// The recorded time. If the recording has no completion of a free, the block stays pending.
    Recorded,
    /// The time of the free.
    AtOnce,
    /// A shift of the recorded times. With 1, each free completes at the recorded time of the next
    /// completion of any free. With -1, it completes at that of the previous completion, but never
    /// before the free itself. A positive number models a device that lags further behind the host
    /// than in the recording.
    Shifted(i32),
}

/// Range of a peak, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeakRange {
    /// Lower end of the range.
    pub low: u64,
    /// Upper end of the range.
    pub high: u64,
}

impl PeakRange {
    pub(crate) fn exact(bytes: u64) -> Self {
        Self { low: bytes, high: bytes }
    }
}

/// Result of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Outcome {
    /// Counts and peaks of the model, up to the first failure.
    pub figures: Figures,
    /// The first request that failed. The run ended at this request.
    pub failure: Option<Failure>,
    /// Number of requests that failed in the recording and succeeded in this run. If it is not
    /// zero, all figures are lower bounds, because the program's use of that memory is not known.
    pub met_failures: u64,
}

/// A request that a model refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Failure {
    /// The event's number in the file; 0 for a block that was live before the recording.
    pub event: u32,
    /// `true` if the request also failed in the recording.
    pub is_recorded: bool,
    /// Reason of the failure.
    pub refusal: Refusal,
}

impl Program {
    /// Prepares the program of a trace.
    pub fn from_trace(trace: &Trace) -> Self {
        let events = trace.events();
        let mut steps = Vec::with_capacity(events.len());
        let recorded = driver_events(trace);
        let private = PrivatePools::from_trace(trace);
        let reserved_before = reserved_before(trace.segments_at_end(), &recorded);
        let mut cleared = cleared::find(trace, reserved_before).into_iter().peekable();
        let mut before = 0;
        for (index, event) in events.iter().enumerate() {
            if index == trace.reconstructed_events() {
                before = steps.len();
            }
            let action = match event.op {
                Op::Allocate { allocation, bytes } => {
                    let pool = private.number_of(trace, allocation, index);
                    Action::Allocate { allocation, pool, bytes }
                }
                Op::Free { allocation } => {
                    let next = events.get(index + 1).map(|event| event.op);
                    match next {
                        Some(Op::FreeCompleted { allocation: same }) if same == allocation => {
                            Action::Release { allocation }
                        }
                        _ if !trace.format().records_completion() => Action::Release { allocation },
                        _ => Action::Free { allocation },
                    }
                }
                Op::FreeCompleted { allocation } => match steps.last() {
                    Some(Step { action: Action::Release { allocation: same }, .. })
                        if *same == allocation =>
                    {
                        continue;
                    }
                    _ => Action::Complete { allocation },
                },
                Op::Fail { bytes } => Action::Fail { bytes },
                Op::SegmentGivenBack { .. } => match cleared.next_if(|of| of.last == index) {
                    Some(Cleared { then_taken, is_certain, .. }) => {
                        Action::GivenBack { then_taken, is_certain }
                    }
                    None => continue,
                },
                Op::SegmentTaken { .. } => continue,
                Op::Retry { .. } => continue,
            };
            steps.push(Step { number: event.number, stream: event.stream, action });
        }
        if trace.reconstructed_events() == events.len() {
            before = steps.len();
        }
        Self {
            steps,
            before,
            streams: trace.streams().iter().map(|stream| stream.handle).collect(),
            allocations: trace.allocations() as usize,
            addresses: trace.addresses().to_vec(),
            segments_before: segments_before(trace.segments_at_end(), &recorded),
            reserved_before,
            recorded,
            settings: trace.allocator_settings().cloned(),
            keys: trace.snapshot_keys().cloned(),
            unlimited: OnceLock::new(),
            records_completion: trace.format().records_completion(),
        }
    }

    /// Returns the settings of PyTorch's allocator that the program ran under. The settings lack
    /// the memory fraction, because no recording contains it. `None` if the recording has no
    /// settings, or if PyTorch does not accept them.
    pub fn recorded_settings(&self) -> Option<Settings> {
        let recorded = self.settings.as_ref()?;
        // Only `text` contains all settings. The other fields contain the values at the end of the
        // recording.
        let mut settings: Settings = recorded.text.parse().unwrap_or_default();
        settings.set_expandable_segments(recorded.expandable_segments);
        settings.set_max_split_size(recorded.max_split_size);
        let threshold = recorded.garbage_collection_threshold;
        settings.set_garbage_collection_threshold(threshold).ok()?;
        for &(power, divisions) in &recorded.roundup_power2_divisions {
            settings.set_divisions(power, divisions).ok()?;
        }
        settings.set_version(self.recorded_version()?.max(settings.version()));
        Some(settings)
    }

    /// Returns the release of PyTorch that recorded the program. Derives it from the snapshot's
    /// keys. `None` if the recording is not a snapshot.
    pub fn recorded_version(&self) -> Option<Version> {
        self.keys.as_ref().map(Version::from_keys)
    }

    /// Returns the segments that the recorded allocator took from the driver and gave back, in
    /// order.
    pub fn recorded_driver_events(&self) -> &[DriverEvent] {
        &self.recorded
    }

    /// Returns the bytes of the segments that were taken before the recording began.
    pub fn reserved_before(&self) -> u64 {
        self.reserved_before
    }

    /// Returns the number of blocks that were live before the recording began, and their bytes.
    pub fn live_before(&self) -> (u64, u64) {
        let (blocks, bytes, _) = self.count_live(&self.steps[..self.before]);
        (blocks, bytes)
    }

    /// Returns the peak of requested live bytes, including requests that failed in the recording.
    pub(crate) fn peak_live(&self) -> u64 {
        self.count_live(&self.steps).2
    }

    /// Returns the number of live blocks after `steps`, their bytes, and the peak of live bytes.
    fn count_live(&self, steps: &[Step]) -> (u64, u64, u64) {
        let mut bytes_of = vec![0; self.allocations];
        let (mut blocks, mut live, mut peak) = (0_u64, 0_u128, 0);
        for step in steps {
            match step.action {
                Action::Allocate { allocation, bytes, .. } => {
                    bytes_of[allocation as usize] = bytes;
                    blocks += 1;
                    live += u128::from(bytes);
                    peak = peak.max(live);
                }
                Action::Fail { bytes } => peak = peak.max(live + u128::from(bytes)),
                Action::Release { allocation } | Action::Free { allocation } => {
                    blocks -= 1;
                    live -= u128::from(bytes_of[allocation as usize]);
                }
                Action::Complete { .. } | Action::GivenBack { .. } => {}
            }
        }
        let clamp = |bytes| u64::try_from(bytes).unwrap_or(u64::MAX);
        (blocks, clamp(live), clamp(peak))
    }

    /// Returns how the snapshot's keys differ from the keys of PyTorch 2.11. `None` if the
    /// recording is not a snapshot.
    pub fn snapshot_keys(&self) -> Option<&SnapshotKeys> {
        self.keys.as_ref()
    }

    /// Returns the number of steps in a run: allocations, frees, completions and emptied caches.
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Returns `true` if the program has no steps.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Runs the program through a model. Completes frees as recorded.
    pub fn run(&self, model: &mut (impl Model + ?Sized)) -> Outcome {
        self.run_with(model, Completion::Recorded)
    }

    /// Runs the program through a model.
    pub fn run_with(&self, model: &mut (impl Model + ?Sized), completion: Completion) -> Outcome {
        let mut tickets = vec![Ticket::NONE; self.allocations];
        match completion {
            Completion::Shifted(by) if by != 0 => {
                let shifted = Self { steps: self.shifted(by), ..self.clone() };
                shifted.run_steps(model, &mut tickets, 0, Completion::Recorded, false)
            }
            completion => self.run_steps(model, &mut tickets, 0, completion, false),
        }
    }

    /// Returns the steps with shifted completions. Completion `n` moves to the recorded place of
    /// completion `n + by`.
    fn shifted(&self, by: i32) -> Vec<Step> {
        // `completed`: blocks in the order of their recorded completion. `waiting`: freed blocks
        // that never completed, in the order of their free.
        let (mut waiting, mut completed) = (BTreeMap::new(), Vec::new());
        let mut freed_at = vec![0; self.allocations];
        for (index, step) in self.steps.iter().enumerate() {
            match step.action {
                Action::Free { allocation } => {
                    freed_at[allocation as usize] = index;
                    waiting.insert(index, allocation);
                }
                Action::Complete { allocation } => {
                    waiting.remove(&freed_at[allocation as usize]);
                    completed.push((index, allocation));
                }
                _ => {}
            }
        }
        let mut steps: Vec<(usize, Step)> = self
            .steps
            .iter()
            .enumerate()
            .filter(|(_, step)| !matches!(step.action, Action::Complete { .. }))
            .map(|(index, step)| (2 * index, *step))
            .collect();
        let blocks =
            completed.iter().map(|&(_, allocation)| allocation).chain(waiting.into_values());
        for (rank, allocation) in (0_i64..).zip(blocks) {
            let moved = rank + i64::from(by);
            let freed = freed_at[allocation as usize];
            // If the index is negative, the free completes at once.
            let at = match usize::try_from(moved) {
                Ok(moved) => completed.get(moved).map(|&(index, _)| index),
                Err(_) => Some(freed),
            };
            if let Some(at) = at {
                let Step { number, stream, .. } = self.steps[freed];
                let action = Action::Complete { allocation };
                steps.push((2 * at.max(freed) + 1, Step { number, stream, action }));
            }
        }
        steps.sort_by_key(|&(at, _)| at);
        steps.into_iter().map(|(_, step)| step).collect()
    }

    /// Compares PyTorch's model with the recorded segments, first without a memory fraction on an
    /// unlimited device. If the segments differ and `settings` has a fraction, compares with that
    /// fraction too. Recordings do not contain the fraction that the program set.
    fn reproduction_under(&self, settings: &Settings, device_memory: u64) -> Option<Reproduction> {
        let unlimited = || self.reproduction(None, u64::MAX);
        let without = (*self.unlimited.get_or_init(unlimited))?;
        match settings.memory_fraction() {
            Some(fraction) if !without.is_exact() => {
                let with = self.reproduction(Some(fraction), device_memory);
                with.filter(Reproduction::is_exact).or(Some(without))
            }
            _ => Some(without),
        }
    }

    /// Runs the program through PyTorch's allocator in its state at the start of the recording.
    /// Segments and live blocks have their recorded addresses. New segments get recorded addresses
    /// too.
    ///
    /// Meant for the recorded settings, because other settings would have led to other segments.
    pub fn run_as_recorded(&self, model: &mut Torch) -> Outcome {
        let fixed = self.recorded.iter().filter(|event| event.is_taken);
        model.follow_addresses(fixed.map(|event| (event.address, event.bytes)));
        for segment in &self.segments_before {
            let Segment { address, bytes, stream, is_small, .. } = *segment;
            model.add_segment(address, bytes, stream, is_small);
        }
        let mut tickets = vec![Ticket::NONE; self.allocations];
        for step in &self.steps[..self.before] {
            match step.action {
                Action::Allocate { allocation, pool, bytes } => {
                    let stream = self.streams[step.stream as usize];
                    let request = Request { bytes, stream, pool };
                    let address = self.addresses[allocation as usize];
                    let ticket = model.allocate_at(request, address);
                    match ticket.map_or_else(|| model.allocate(request), Ok) {
                        Ok(ticket) => tickets[allocation as usize] = ticket,
                        Err(refusal) => {
                            let failure =
                                Failure { event: 0, is_recorded: false, refusal: *refusal };
                            let figures = model.figures();
                            return Outcome { figures, failure: Some(failure), met_failures: 0 };
                        }
                    }
                }
                Action::Free { allocation } | Action::Release { allocation } => {
                    model.free(tickets[allocation as usize], self.streams[step.stream as usize]);
                }
                Action::Complete { .. } | Action::Fail { .. } | Action::GivenBack { .. } => {}
            }
        }
        // If a request failed, PyTorch may have given segments back because of a limit that the
        // model lacks, and not because of `empty_cache`.
        let is_unlimited = !self.steps.iter().any(Step::fails);
        self.run_steps(model, &mut tickets, self.before, Completion::Recorded, is_unlimited)
    }

    /// Runs the steps, beginning with step `from`.
    ///
    /// If `as_recorded`, the model has the recorded settings and limit. If PyTorch gave segments
    /// back although the model has room, the program must have called `empty_cache`, so the model's
    /// cache is emptied too.
    fn run_steps(
        &self,
        model: &mut (impl Model + ?Sized),
        tickets: &mut [Ticket],
        from: usize,
        completion: Completion,
        as_recorded: bool,
    ) -> Outcome {
        let mut met_failures = 0;
        for step in &self.steps[from..] {
            let stream = self.streams[step.stream as usize];
            let (request, is_recorded) = match step.action {
                Action::Allocate { pool, bytes, .. } => (Request { bytes, stream, pool }, false),
                Action::Fail { bytes } => (Request { bytes, stream, pool: 0 }, true),
                Action::Release { allocation } => {
                    let ticket = tickets[allocation as usize];
                    model.free(ticket, stream);
                    model.complete(ticket);
                    continue;
                }
                Action::Free { allocation } => {
                    let ticket = tickets[allocation as usize];
                    model.free(ticket, stream);
                    if completion == Completion::AtOnce {
                        model.complete(ticket);
                    }
                    continue;
                }
                Action::Complete { allocation } => {
                    model.complete(tickets[allocation as usize]);
                    continue;
                }
                Action::GivenBack { then_taken, is_certain } => {
                    if is_certain || (as_recorded && model.has_room(then_taken)) {
                        model.empty_cache();
                    }
                    continue;
                }
            };
            match (model.allocate(request), step.action) {
                (Ok(ticket), Action::Allocate { allocation, .. }) => {
                    tickets[allocation as usize] = ticket;
                }
                (Ok(ticket), _) => {
                    met_failures += 1;
                    model.free(ticket, stream);
                    model.complete(ticket);
                }
                (Err(refusal), _) => {
                    let failure = Failure { event: step.number, is_recorded, refusal: *refusal };
                    let figures = model.figures();
                    return Outcome { figures, failure: Some(failure), met_failures };
                }
            }
        }
        Outcome { figures: model.figures(), failure: None, met_failures }
    }

    pub(crate) fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Returns the handles of the streams; 0 is the default stream.
    pub(crate) fn streams(&self) -> &[u64] {
        &self.streams
    }

    pub(crate) fn allocations(&self) -> usize {
        self.allocations
    }

    /// Returns `true` if the recording has the completions of frees.
    pub fn records_completion(&self) -> bool {
        self.records_completion
    }
}

/// Returns the segments that the recorded allocator took from the driver and gave back, in order.
fn driver_events(trace: &Trace) -> Vec<DriverEvent> {
    let event = |event: &gpuheap_trace::Event| {
        let (Op::SegmentTaken { address, bytes } | Op::SegmentGivenBack { address, bytes }) =
            event.op
        else {
            return None;
        };
        let stream = trace.streams()[event.stream as usize].handle;
        let is_taken = matches!(event.op, Op::SegmentTaken { .. });
        Some(DriverEvent { is_taken, bytes, stream, address })
    };
    trace.events().iter().filter_map(event).collect()
}

/// Returns the bytes held before the recording: the bytes held at its end, less the bytes taken
/// during the recording, plus the bytes given back.
fn reserved_before(at_end: &[Segment], recorded: &[DriverEvent]) -> u64 {
    let held: i128 = at_end.iter().map(|segment| i128::from(segment.bytes)).sum();
    let signed = |event: &DriverEvent| {
        let bytes = i128::from(event.bytes);
        if event.is_taken { bytes } else { -bytes }
    };
    let gained: i128 = recorded.iter().map(signed).sum();
    u64::try_from((held - gained).max(0)).unwrap_or(u64::MAX)
}

/// Returns the segments that were held before the recording and are still held at its end. Empty if
/// a segment grows in place, because `Torch::add_segment` cannot add such segments.
fn segments_before(at_end: &[Segment], recorded: &[DriverEvent]) -> Vec<Segment> {
    let mut segments: Vec<Segment> =
        at_end.iter().copied().filter(|segment| !segment.is_expandable).collect();
    if at_end.len() != segments.len() {
        return Vec::new();
    }
    let taken: FxHashSet<u64> =
        recorded.iter().filter(|event| event.is_taken).map(|event| event.address).collect();
    segments.retain(|segment| !taken.contains(&segment.address));
    segments
}
