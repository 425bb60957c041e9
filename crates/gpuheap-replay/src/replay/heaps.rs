//! gpuheap's own pools: a heap of the library that runs a trace.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gpuheap::emu::{Emulator, Profile};
use gpuheap::{Block, Error, Heap, OutOfMemory, PoolKind, Size, Stream};
use gpuheap_trace::{Op, Trace};

use super::device::Machine;
use super::{Cause, Pool, PoolReport, Stop};
use crate::PeakRange;
use crate::text::Amount;

/// The default stream's handle in a trace.
const DEFAULT_STREAM: u64 = 0;
/// The most passes after the first. The time of an event is their median.
const LATER_PASSES: usize = 3;
/// Total time of the later passes after which no further pass begins.
const LATER_BUDGET: Duration = Duration::from_secs(2);

/// Trace as dense steps. Nothing else is touched while a pass is timed.
pub(super) struct Steps {
    steps: Vec<Step>,
    /// The event of each step, as an index into the trace's.
    events: Vec<u32>,
    /// Due time of each step, nanoseconds from the start of a pass.
    times: Vec<u64>,
    /// Allocations that the steps leave live, each with its stream.
    leftovers: Vec<(u32, u32)>,
    streams: Vec<u64>,
    allocations: usize,
    duration_ns: u64,
    peak_live: u64,
}

#[derive(Clone, Copy)]
enum Step {
    Allocate { allocation: u32, stream: u32, bytes: u64 },
    Free { allocation: u32, stream: u32 },
}

/// Bounds of what the heap of a replay takes and keeps.
#[derive(Clone, Copy)]
pub(super) struct Bounds {
    /// The hard limit.
    pub(super) limit: Option<Size>,
    /// Freed bytes that the pool of a `driver` heap keeps.
    pub(super) threshold: Option<Size>,
}

impl Steps {
    pub(super) fn of(trace: &Trace) -> Steps {
        let mut steps = Vec::with_capacity(trace.events().len());
        let mut times = Vec::with_capacity(trace.events().len());
        let mut events = Vec::with_capacity(trace.events().len());
        // A request that failed is served at its place and freed at once, because the program's use
        // of that memory is not known. Its number follows those of the allocations.
        let mut failed = trace.allocations();
        // Stream and bytes of each block while it is live.
        let mut live_on = vec![None; trace.allocations() as usize];
        let (mut live, mut peak_live) = (0_u128, 0);
        for (index, event) in (0..).zip(trace.events()) {
            let stream = event.stream;
            let step = match event.op {
                Op::Allocate { allocation, bytes } => {
                    live_on[allocation as usize] = Some((stream, bytes));
                    live += u128::from(bytes);
                    peak_live = live.max(peak_live);
                    Step::Allocate { allocation, stream, bytes }
                }
                Op::Free { allocation } => {
                    let freed = live_on[allocation as usize].take();
                    live -= freed.map_or(0, |(_, bytes)| u128::from(bytes));
                    Step::Free { allocation, stream }
                }
                Op::Fail { bytes } => {
                    peak_live = peak_live.max(live + u128::from(bytes));
                    let allocation = failed;
                    failed = failed.saturating_add(1);
                    steps.push(Step::Allocate { allocation, stream, bytes });
                    times.push(event.time_ns);
                    events.push(index);
                    Step::Free { allocation, stream }
                }
                // The recorded allocator took and gave back segments by its own rules, not by the
                // program's. The device of the replay decides how long a free is pending.
                Op::FreeCompleted { .. }
                | Op::Retry { .. }
                | Op::SegmentTaken { .. }
                | Op::SegmentGivenBack { .. } => continue,
            };
            steps.push(step);
            times.push(event.time_ns);
            events.push(index);
        }
        let leftovers = (0..).zip(&live_on).filter_map(|(block, on)| Some((block, (*on)?.0)));
        Steps {
            leftovers: leftovers.collect(),
            streams: trace.streams().iter().map(|stream| stream.handle).collect(),
            allocations: failed as usize,
            events,
            duration_ns: times.last().copied().unwrap_or(0),
            peak_live: u64::try_from(peak_live).unwrap_or(u64::MAX),
            steps,
            times,
        }
    }
}

impl Steps {
    /// Returns the peak of live bytes, as requested.
    pub(super) fn peak_live(&self) -> u64 {
        self.peak_live
    }
}

/// Replays `trace` twice, then again for the time of an event.
///
/// # Errors
///
/// Every refusal of the driver, except for missing memory.
pub(super) fn measure(
    trace: &Trace,
    program: &Steps,
    pool: PoolKind,
    target: &Machine,
    bounds: Bounds,
) -> Result<PoolReport, Error> {
    let mut replay = HeapReplay::new(program, pool, target, bounds)?;
    let per_event = |time: Duration| time.as_nanos() as f64 / program.steps.len().max(1) as f64;
    let (mut cold_ns, mut stop) = (None, None);
    let mut later = Vec::new();
    match replay.pass()? {
        Ok(time) => cold_ns = Some(per_event(time)),
        Err(at) => stop = Some(at.locate(trace, program, 1)),
    }
    if stop.is_none() {
        match replay.pass()? {
            Ok(time) => later.push(time),
            Err(at) => stop = Some(at.locate(trace, program, 2)),
        }
    }
    let usage = replay.heap.usage()?;
    while stop.is_none()
        && later.len() < LATER_PASSES
        && later.iter().sum::<Duration>() < LATER_BUDGET
    {
        // The first two passes decide. A pool that runs out of memory in a later one still got
        // through.
        let Ok(time) = replay.pass()? else { break };
        later.push(time);
    }
    later.sort_unstable();
    let status = replay.heap.memory_status()?;
    let peak_reserved = PeakRange { low: usage.reserved_peak, high: usage.reserved_peak };
    Ok(PoolReport {
        pool: Pool::Own(pool),
        settings: None,
        actual: (status.pool != pool).then_some(status.pool),
        fallback: status.fallback,
        // The heap counts threads and streams apart, so its own peak is approximate.
        peak_live: if stop.is_none() { program.peak_live } else { usage.live_peak },
        peak_reserved,
        driver_calls: usage.driver_calls,
        cold_ns,
        warm_ns: later.get(later.len() / 2).copied().map(per_event),
        stop,
        may_fail: false,
        minimum: None,
    })
}

/// Replays twice on an emulated device with `bytes`. Returns the peak of reserved bytes, or the
/// reason why memory ran out.
///
/// # Errors
///
/// As [`measure`].
pub(super) fn attempt(
    program: &Steps,
    pool: PoolKind,
    machine: &Machine,
    bounds: Bounds,
    bytes: u64,
) -> Result<Result<u64, String>, Error> {
    let machine = match machine {
        Machine::Real(_) => machine.clone(),
        Machine::Emulated { profile, delay } => {
            let profile = Profile { memory_bytes: bytes, ..profile.clone() };
            Machine::Emulated { profile, delay: *delay }
        }
    };
    let mut replay = HeapReplay::new(program, pool, &machine, bounds)?;
    for _ in 0..2 {
        if let Err(at) = replay.pass()? {
            return Ok(Err(match at.evidence.limit {
                Some(limit) => format!("the limit of {} is too low", Amount(limit)),
                None => format!("{} are not enough", Amount(bytes)),
            }));
        }
    }
    Ok(Ok(replay.heap.usage()?.reserved_peak))
}

/// Heap between its passes. Fields drop in order. Blocks drop before the heap, and the heap before
/// its streams, because it fences pending frees on them when it ends.
struct HeapReplay<'p> {
    program: &'p Steps,
    blocks: Vec<Option<Block>>,
    heap: Heap,
    streams: Vec<Stream>,
    /// Emulator whose clock follows the trace; `None` if streams do not lag.
    clock: Option<Arc<Emulator>>,
    pass_start_ns: u64,
}

/// The step at which memory ran out.
struct Shortage {
    step: usize,
    evidence: OutOfMemory,
}

impl<'p> HeapReplay<'p> {
    fn new(
        program: &'p Steps,
        pool: PoolKind,
        target: &Machine,
        bounds: Bounds,
    ) -> Result<HeapReplay<'p>, Error> {
        let device = target.open()?;
        let streams: Result<Vec<Stream>, Error> = program
            .streams
            .iter()
            .map(|handle| match *handle {
                DEFAULT_STREAM => device.default_stream(),
                _ => device.stream(),
            })
            .collect();
        let mut heap = Heap::builder(&device).without_environment().pool(pool);
        if let Some(limit) = bounds.limit {
            heap = heap.hard_limit(limit.to_bytes(device.total_memory()));
        }
        if let Some(threshold) = bounds.threshold {
            heap = heap.release_threshold(threshold.to_bytes(device.total_memory()));
        }
        let lags = matches!(target, Machine::Emulated { delay: Some(_), .. });
        Ok(HeapReplay {
            program,
            blocks: std::iter::repeat_with(|| None).take(program.allocations).collect(),
            heap: heap.build()?,
            streams: streams?,
            clock: device.emulator().filter(|_| lags).cloned(),
            pass_start_ns: 0,
        })
    }

    /// Runs all steps, then frees what they left live. Returns the time of the steps alone.
    fn pass(&mut self) -> Result<Result<Duration, Shortage>, Error> {
        let HeapReplay { program, blocks, heap, streams, clock, pass_start_ns } = self;
        let start = Instant::now();
        for (index, step) in program.steps.iter().enumerate() {
            if let Some(emulator) = clock {
                let now = pass_start_ns.saturating_add(program.times[index]);
                emulator.set_time(Duration::from_nanos(now));
            }
            match *step {
                Step::Allocate { allocation, stream, bytes } => {
                    match heap.allocate(bytes, &streams[stream as usize]) {
                        Ok(block) => blocks[allocation as usize] = Some(block),
                        Err(error) => match error.out_of_memory() {
                            Some(evidence) => {
                                let evidence = evidence.clone();
                                return Ok(Err(Shortage { step: index, evidence }));
                            }
                            None => return Err(error),
                        },
                    }
                }
                Step::Free { allocation, stream } => {
                    if let Some(block) = blocks[allocation as usize].take() {
                        block.free_on(&streams[stream as usize])?;
                    }
                }
            }
        }
        let time = start.elapsed();
        for (allocation, stream) in &program.leftovers {
            if let Some(block) = blocks[*allocation as usize].take() {
                block.free_on(&streams[*stream as usize])?;
            }
        }
        *pass_start_ns = pass_start_ns.saturating_add(program.duration_ns);
        Ok(Ok(time))
    }
}

impl Shortage {
    /// Describes the failed step as an event of the trace.
    fn locate(self, trace: &Trace, program: &Steps, pass: u32) -> Stop {
        let index = program.events.get(self.step);
        let event = index.and_then(|&index| trace.events().get(index as usize));
        let evidence = &self.evidence;
        let device = evidence.device.unwrap_or(u64::MAX);
        let limit = evidence.limit.filter(|limit| *limit < device);
        let rounding = evidence.live_blocks.saturating_sub(evidence.live);
        let pieces = evidence.cached.saturating_sub(evidence.pending);
        let cause = match evidence.cause {
            gpuheap::Cause::OtherHeaps
            | gpuheap::Cause::Foreign
            | gpuheap::Cause::Refused
            | gpuheap::Cause::Capture => Cause::Other(evidence.cause.name()),
            _ => {
                let other_streams = evidence.cached_on_other_streams;
                let parts = [
                    (rounding, Cause::Rounding),
                    (evidence.pending, Cause::Pending),
                    (other_streams, Cause::OtherStreams),
                    (pieces.saturating_sub(other_streams), Cause::Fragmentation),
                ];
                let capacity = limit.unwrap_or(device);
                Cause::of(evidence.requested, evidence.live, capacity, limit.is_some(), parts)
            }
        };
        Stop {
            event: event.map_or(0, |event| event.number.into()),
            time_ns: event.map_or(0, |event| event.time_ns),
            pass,
            requested: evidence.requested,
            reserved: evidence.reserved,
            live: evidence.live,
            rounding,
            cached: evidence.cached,
            pending: evidence.pending,
            other_streams: Some(evidence.cached_on_other_streams),
            largest_cached: evidence.largest_cached_block,
            short_by: evidence.short_by,
            limit,
            cause,
        }
    }
}
