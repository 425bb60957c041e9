//! Replays traces through gpuheap's own pools: a real heap, and no model, serves the requests.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gpuheap::emu::Emulator;
use gpuheap::{Block, Error, Heap, OutOfMemory, PoolKind, Stream};

use super::device::Machine;
use super::{Bench, Cause, Memory, Pool, PoolReport, Stop};
use crate::PeakRange;
use crate::program::{Action, Program};

/// The default stream's handle in a trace.
const DEFAULT_STREAM: u64 = 0;
/// Largest number of passes after the first. The time of an event is the median over these passes.
const LATER_PASSES: usize = 3;
/// Total time of the passes after the first. After this time, no further pass begins.
const LATER_BUDGET: Duration = Duration::from_secs(2);

/// Replays the trace twice to find whether memory runs out. Then replays it a few more times to
/// measure the host time of an allocation or a free.
pub(super) fn measure(bench: &Bench<'_>, pool: PoolKind) -> Result<PoolReport, Error> {
    let mut replay = HeapReplay::new(bench, pool, &bench.machine)?;
    let calls = bench.program.steps().iter().map(|step| match step.action {
        Action::Allocate { .. } | Action::Release { .. } | Action::Free { .. } => 1,
        Action::Fail { .. } => 2,
        Action::Complete { .. } | Action::GivenBack { .. } => 0,
    });
    let calls = calls.sum::<u64>().max(1);
    let per_event = |time: Duration| time.as_nanos() as f64 / calls as f64;
    let mut report = PoolReport::new(Pool::Own(pool));
    let mut later = Vec::new();
    for pass in 1..=2 {
        match replay.pass()? {
            Ok(time) if pass == 1 => report.cold_ns = Some(per_event(time)),
            Ok(time) => later.push(time),
            Err(at) => {
                report.stop = Some(at.locate(bench, pass));
                break;
            }
        }
    }
    let usage = replay.heap.usage()?;
    while report.stop.is_none()
        && later.len() < LATER_PASSES
        && later.iter().sum::<Duration>() < LATER_BUDGET
    {
        // The first two passes decide whether memory runs out. Later passes only measure time, so a
        // shortage there does not count.
        let Ok(time) = replay.pass()? else { break };
        later.push(time);
    }
    later.sort_unstable();
    let status = replay.heap.memory_status()?;
    Ok(PoolReport {
        actual: (status.pool != pool).then_some(status.pool),
        fallback: status.fallback,
        // The heap counts each thread and stream separately, so its own peak is approximate.
        peak_live: if report.stop.is_none() { bench.peak_live } else { usage.live_peak },
        peak_reserved: PeakRange::exact(usage.reserved_peak),
        driver_calls: usage.driver_calls,
        warm_ns: later.get(later.len() / 2).copied().map(per_event),
        ..report
    })
}

/// Replays the trace twice through one heap, on an emulated device with `bytes` of memory. Returns
/// the peak of reserved bytes, or the reason why memory ran out.
pub(super) fn attempt(
    bench: &Bench<'_>,
    pool: PoolKind,
    bytes: u64,
) -> Result<Result<u64, String>, Error> {
    let mut replay = HeapReplay::new(bench, pool, &bench.machine.with_memory(bytes))?;
    for _ in 0..2 {
        if let Err(at) = replay.pass()? {
            let memory = Memory { limit: at.evidence.limit, ..Memory::whole(bytes) };
            return Ok(Err(memory.shortage()));
        }
    }
    Ok(Ok(replay.heap.usage()?.reserved_peak))
}

/// Heap that replays a trace in passes. Fields drop in order: blocks before the heap, and the heap
/// before its streams. When the heap drops, it fences pending frees on these streams.
struct HeapReplay<'b> {
    program: &'b Program,
    blocks: Vec<Option<Block>>,
    heap: Heap,
    streams: Vec<Stream>,
    /// Emulated device, with the recorded time of each step in nanoseconds. Before the step, the
    /// device's clock is set to the start of the pass plus that time. `None` if streams do not lag.
    clock: Option<(Arc<Emulator>, Vec<u64>)>,
    pass_start_ns: u64,
}

/// The event at which memory ran out.
struct Shortage {
    /// The event's number in the file.
    number: u32,
    evidence: OutOfMemory,
}

impl<'b> HeapReplay<'b> {
    fn new(bench: &'b Bench<'_>, pool: PoolKind, machine: &Machine) -> Result<Self, Error> {
        let device = machine.open()?;
        let program = &bench.program;
        let streams = program.streams().iter().map(|handle| match *handle {
            DEFAULT_STREAM => device.default_stream(),
            _ => device.stream(),
        });
        let streams = streams.collect::<Result<_, _>>()?;
        let mut heap = Heap::builder(&device).without_environment().pool(pool);
        if let Some(limit) = bench.limit {
            heap = heap.hard_limit(limit.to_bytes(device.total_memory()));
        }
        if let Some(threshold) = bench.release_threshold {
            heap = heap.release_threshold(threshold.to_bytes(device.total_memory()));
        }
        let lags = matches!(machine, Machine::Emulated { delay: Some(_), .. });
        let times = || program.steps().iter().map(|step| bench.time_of(step.number)).collect();
        Ok(Self {
            program,
            blocks: std::iter::repeat_with(|| None).take(program.allocations()).collect(),
            heap: heap.build()?,
            streams,
            clock: device.emulator().filter(|_| lags).map(|clock| (Arc::clone(clock), times())),
            pass_start_ns: 0,
        })
    }

    /// Runs all steps, then frees the blocks that are still live. Returns the time of the steps
    /// alone. A request that failed in the recording is served and freed immediately, because the
    /// program's use of that memory is not known.
    fn pass(&mut self) -> Result<Result<Duration, Shortage>, Error> {
        let Self { program, blocks, heap, streams, clock, pass_start_ns } = self;
        let start = Instant::now();
        for (index, step) in program.steps().iter().enumerate() {
            if let Some((emulator, times)) = clock {
                let now = pass_start_ns.saturating_add(times[index]);
                emulator.set_time(Duration::from_nanos(now));
            }
            let stream = &streams[step.stream as usize];
            let (allocation, bytes) = match step.action {
                Action::Allocate { allocation, bytes, .. } => (Some(allocation), bytes),
                Action::Fail { bytes } => (None, bytes),
                Action::Release { allocation } | Action::Free { allocation } => {
                    if let Some(block) = blocks[allocation as usize].take() {
                        block.free_on(stream)?;
                    }
                    continue;
                }
                // These steps are skipped. The replay's device decides how long a free is pending,
                // and the heap decides when it gives memory back.
                Action::Complete { .. } | Action::GivenBack { .. } => continue,
            };
            match (heap.allocate(bytes, stream), allocation) {
                (Ok(block), Some(allocation)) => blocks[allocation as usize] = Some(block),
                (Ok(block), None) => block.free_on(stream)?,
                (Err(error), _) => match error.out_of_memory().cloned() {
                    Some(evidence) => return Ok(Err(Shortage { number: step.number, evidence })),
                    None => return Err(error),
                },
            }
        }
        let time = start.elapsed();
        blocks.iter_mut().filter_map(Option::take).try_for_each(Block::free)?;
        if let Some((_, times)) = clock {
            *pass_start_ns = pass_start_ns.saturating_add(times.last().copied().unwrap_or(0));
        }
        Ok(Ok(time))
    }
}

impl Shortage {
    /// Returns a [`Stop`] with the trace's event at which memory ran out, and with the cause.
    fn locate(self, bench: &Bench<'_>, pass: u32) -> Stop {
        let Self { number, evidence } = self;
        let device = evidence.device.unwrap_or(u64::MAX);
        let limit = evidence.limit.filter(|limit| *limit < device);
        let rounding = evidence.live_blocks.saturating_sub(evidence.live);
        let other_streams = evidence.cached_on_other_streams;
        let cause = match evidence.cause {
            gpuheap::Cause::OtherHeaps
            | gpuheap::Cause::Foreign
            | gpuheap::Cause::Refused
            | gpuheap::Cause::Capture => Cause::Other(evidence.cause.name()),
            _ => {
                let pieces = evidence.cached.saturating_sub(evidence.pending);
                let pieces = pieces.saturating_sub(other_streams);
                let unused = [rounding, evidence.pending, other_streams, pieces];
                let capacity = limit.unwrap_or(device);
                Cause::find(evidence.requested, evidence.live, capacity, limit.is_some(), unused)
            }
        };
        Stop {
            event: number.into(),
            time_ns: bench.time_of(number),
            pass,
            requested: evidence.requested,
            reserved: evidence.reserved,
            live: evidence.live,
            rounding,
            cached: evidence.cached,
            pending: evidence.pending,
            other_streams: Some(other_streams),
            largest_cached: evidence.largest_cached_block,
            short_by: evidence.short_by,
            limit,
            cause,
        }
    }
}
