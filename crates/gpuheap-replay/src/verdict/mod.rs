//! Draws conclusions from replays: the outcome, its reason, and remedies.

mod fits;
mod remedies;
mod remedy;
mod rmm;

use gpuheap_trace::Holder;

pub use self::fits::{Fit, Way};
use self::remedies::best_pool;
pub use self::remedy::{Remedy, RemedyKind};
use crate::moment::Moment;
pub use crate::recorded::{FailedRequest, Recorded, RecordedLimit, RunDevice};
use crate::replay::minimum::LARGEST;
use crate::replay::{
    Bench, Cause, Options, Pool, PoolReport, ReplayError, Silent, Stop, torch_settings,
};

/// Verdict on a trace. Sizes are bytes.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Verdict {
    /// `true` if no checked pool runs out of memory at any speed of the program, and the verdict is
    /// not about a recorded failure.
    pub gets_through: bool,
    /// `true` if the replays did not run out of memory, but could at another speed of the program.
    /// The speed decides which freed blocks are still in use by other streams.
    pub may_fail: bool,
    /// Pools on which `gets_through` and `may_fail` depend.
    pub checked: Vec<Pool>,
    /// `true` if all figures are lower bounds, because requests failed in the recording. The
    /// program's use of the missing memory is not known.
    pub is_lower_bound: bool,
    /// Memory at the failure; `None` if nothing failed.
    pub failure: Option<MemoryAtFailure>,
    /// Remedies with which the program does not run out of memory, or takes less memory: settings,
    /// other pools, a higher limit, and last gpuheap's own heap.
    pub remedies: Vec<Remedy>,
    /// Advised pool. If the user named pools that succeed, the one that needs the least memory.
    /// Otherwise the first pool that a remedy names, or else the best of the replayed pools.
    pub recommended: Option<Advice>,
    /// Smallest memory that a checked pool needs, and the memory that it takes from a large device.
    /// `None` if memory ran out, or if the recorded allocator or the minimum is not known.
    pub needs: Option<Needs>,
    /// All known cards, each with the change that the program needs to fit on it. Empty if neither
    /// the program's pool nor a pool that it could change to is known.
    pub fits: Vec<Fit>,
}

/// Pool, and the memory that is enough with this pool.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Advice {
    /// The pool, as `--pool` takes it.
    pub pool: String,
    /// Setting of the framework, as the user types it.
    pub setting: Option<String>,
    /// Usable memory that is enough, in bytes.
    pub enough: u64,
}

/// Memory that the program needs and takes with one pool, in bytes. A pool may need less on a small
/// device than it takes on a large one, because it gives back cached memory before a request fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Needs {
    /// Usable memory of the smallest device on which the program does not run out of memory.
    pub least: u64,
    /// Peak of the memory that the pool takes from a device that has enough memory.
    pub most: u64,
    /// `false` if the peak depends on the program's speed. Less than `least` may then be enough.
    pub is_exact: bool,
}

impl Needs {
    /// Returns the memory that a pool needs. `None` for gpuheap's own pools if the options request
    /// no minimum, because replays through these pools take long.
    fn find(bench: &Bench<'_>, result: &PoolReport) -> Result<Option<Self>, ReplayError> {
        let minimum = match (&result.minimum, &result.pool) {
            (Some(minimum), _) => minimum.clone(),
            (None, Pool::Model(_)) => bench.find_minimum(result, &Silent)?,
            (None, Pool::Own(_)) => return Ok(None),
        };
        let Some(least) = minimum.bytes() else { return Ok(None) };
        let settings = match &result.pool {
            Pool::Model(text) => torch_settings(bench, text)?,
            Pool::Own(_) => None,
        };
        let most = match settings {
            Some(settings) if settings.memory_fraction().is_none() => {
                bench.program.torch_peak(&settings, LARGEST).high
            }
            _ => result.peak_reserved.high,
        };
        let is_exact = result.peak_reserved.low == result.peak_reserved.high;
        Ok(Some(Self { least, most, is_exact }))
    }
}

/// Memory at the first request that failed. Sizes are bytes.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct MemoryAtFailure {
    /// Pool that refused the request; `None` for the allocator that recorded the trace.
    pub pool: Option<Pool>,
    /// The event's number in the file; 0 for a block that was live before the recording.
    pub event: u64,
    /// Nanoseconds since the first recorded event.
    pub time_ns: u64,
    /// The request.
    pub requested: u64,
    /// Memory taken from the driver; `None` if it is not known.
    pub reserved: Option<u64>,
    /// Requested bytes of live blocks.
    pub live: u64,
    /// Bytes that rounding added to live blocks; `None` if the recording does not show them.
    pub rounding: Option<u64>,
    /// Free memory that the request's stream may use.
    pub free: Option<u64>,
    /// Number of pieces that `free` consists of.
    pub pieces: Option<u64>,
    /// Largest free piece that the request's stream may use.
    pub largest: Option<u64>,
    /// Freed memory that other streams still use.
    pub pending: Option<u64>,
    /// Free memory that is held for other streams.
    pub other_streams: Option<u64>,
    /// Free bytes of the device, as the driver reports them.
    pub device_free: Option<u64>,
    /// Main reason why the request failed; `None` if the recording does not show it.
    pub cause: Option<Cause>,
    /// Largest holders of memory, most bytes first.
    pub holders: Vec<Holder>,
    /// `true` if the holders are lines of the program, `false` if they are sizes of blocks.
    pub has_stacks: bool,
}

impl Verdict {
    pub(crate) fn judge(
        bench: &Bench<'_>,
        recorded: &Recorded,
        results: &[PoolReport],
        options: &Options,
    ) -> Result<Self, ReplayError> {
        let checked = checked_pools(recorded, results, options);
        let of_checked = || results.iter().filter(|result| checked.contains(&result.pool));
        // If the user chose no device, limit or pool, and the recorded allocator is known, the
        // verdict is about the recorded run. If the run's memory is not known, a replay on the
        // default device proves nothing about the run, so the recorded failure decides.
        let is_given = options.limit.is_some() || options.device.is_given();
        let is_run = recorded.allocator.is_some()
            && options.pools.is_empty()
            && options.check.is_none()
            && !is_given;
        let is_recorded_failure =
            !recorded.failed.is_empty() && (is_run || !options.knows_memory(recorded));
        let gets_through = !is_recorded_failure && of_checked().all(PoolReport::gets_through);
        let may_fail = !is_recorded_failure
            && of_checked().all(|result| result.stop.is_none())
            && !gets_through;
        // A log of RMM does not name the resource that the program used. If the user chose no pool
        // either, the reported failure is from a replay of a resource without an initial size.
        let is_open = recorded.is_rmm && options.pools.is_empty() && options.check.is_none();
        let is_meant = |result: &&PoolReport| {
            !is_open || matches!(result.pool.base(), "cuda" | "rmm:async" | "rmm:binning")
        };
        let stopped = of_checked().filter(is_meant);
        let stopped = stopped.filter_map(|result| Some((result, result.stop.as_ref()?)));
        // If several pools failed, reports the failure that is latest in the program.
        let stopped = stopped.max_by_key(|(_, stop)| (stop.pass, stop.event));
        let failure = match (recorded.failed.first(), stopped) {
            // If the user chose a device or a limit, or the replay failed earlier than the run, the
            // verdict reports the replay's failure. Otherwise, it reports the recorded failure.
            (Some(first), Some((result, stop)))
                if is_given || stop.event < first.event && stop.pass == 1 =>
            {
                Some(MemoryAtFailure::from_stop(bench, result, stop))
            }
            (Some(first), _) => recorded
                .at_failure
                .as_ref()
                .map(|moment| MemoryAtFailure::from_recording(moment, *first, recorded.limit)),
            (None, Some((result, stop))) if !gets_through => {
                Some(MemoryAtFailure::from_stop(bench, result, stop))
            }
            _ => None,
        };
        let remedies::Found { remedies, pools } = remedies::find(
            bench,
            recorded,
            results,
            &checked,
            !options.pools.is_empty(),
            gets_through,
        )?;
        let recommended = match gets_through && !options.pools.is_empty() {
            true => choose_named_pool(results, &checked),
            false => choose_pool(bench, results, &checked, &remedies, gets_through),
        };
        let deciding = match (recorded.allocator.is_some(), gets_through) {
            (true, true) => of_checked().next(),
            (true, false) if may_fail => of_checked().find(|result| result.may_fail),
            _ => None,
        };
        let needs = deciding.map_or(Ok(None), |result| Needs::find(bench, result))?;
        let main = checked.iter().find(|pool| Some(pool.base()) == recorded.allocator);
        let main = main.map(ToString::to_string);
        let fits = match main.is_some() || !pools.is_empty() {
            true => fits::find(bench, main.as_deref(), &pools)?,
            false => Vec::new(),
        };
        Ok(Self {
            gets_through,
            may_fail,
            checked,
            is_lower_bound: !recorded.failed.is_empty(),
            failure,
            remedies,
            recommended,
            needs,
            fits,
        })
    }
}

/// Returns the pools on which the verdict depends: the pool of `options.check`, or else of
/// `options.pools`. If both are empty, returns the allocator that recorded the trace, or else all
/// pools.
fn checked_pools(recorded: &Recorded, results: &[PoolReport], options: &Options) -> Vec<Pool> {
    match (&options.check, &options.pools[..], recorded.allocator) {
        (Some(pool), ..) => vec![pool.clone()],
        (None, [], Some(allocator)) => vec![Pool::Model(allocator.to_owned())],
        (None, [], _) => results.iter().map(|result| result.pool.clone()).collect(),
        (None, named, _) => named.to_vec(),
    }
}

/// Returns the pool that needs the least memory, of the pools that the user named.
fn choose_named_pool(results: &[PoolReport], checked: &[Pool]) -> Option<Advice> {
    let named = results.iter().filter(|result| checked.contains(&result.pool));
    let named = named.filter(|result| result.fallback.is_none() || results.len() == 1);
    let least = named.min_by_key(|result| (sufficient_memory(result), result.driver_calls))?;
    Some(Advice { pool: least.pool.to_string(), setting: None, enough: sufficient_memory(least) })
}

/// Returns the memory that is enough for a pool: the smallest device's memory if the replay
/// searched for it, or else the peak.
fn sufficient_memory(result: &PoolReport) -> u64 {
    let minimum = result.minimum.as_ref().and_then(|minimum| minimum.bytes());
    minimum.unwrap_or(result.peak_reserved.high)
}

fn choose_pool(
    bench: &Bench<'_>,
    results: &[PoolReport],
    checked: &[Pool],
    remedies: &[Remedy],
    gets_through: bool,
) -> Option<Advice> {
    let best = remedies.iter().find(|remedy| remedy.pool.is_some());
    if let Some(Remedy { pool: Some(pool), line, reserved: Some(reserved), .. }) = best {
        let (pool, setting) = (pool.clone(), Some(line.clone()));
        return Some(Advice { pool, setting, enough: reserved.high });
    }
    let own = best_pool(bench, results, |result| !gets_through || checked.contains(&result.pool))?;
    Some(Advice { pool: own.pool.to_string(), setting: None, enough: sufficient_memory(own) })
}

impl MemoryAtFailure {
    fn from_recording(
        moment: &Moment,
        request: FailedRequest,
        limit: Option<RecordedLimit>,
    ) -> Self {
        let held = moment.held;
        let cause = limit.zip(held).map(|(limit, held)| {
            let pieces = held.free.saturating_sub(held.other_streams);
            let unused = [held.rounding, moment.pending, held.other_streams, pieces];
            Cause::find(request.bytes, moment.live, limit.below, limit.is_own_limit, unused)
        });
        Self {
            pool: None,
            event: moment.event,
            time_ns: moment.time_ns,
            requested: request.bytes,
            reserved: held.map(|held| held.reserved),
            live: moment.live,
            rounding: held.map(|held| held.rounding),
            free: held.map(|held| held.free.saturating_sub(held.other_streams)),
            pieces: held.map(|held| held.pieces),
            largest: held.map(|held| held.largest),
            pending: held.map(|_| moment.pending),
            other_streams: held.map(|held| held.other_streams),
            device_free: request.device_free,
            cause,
            holders: moment.holders.clone(),
            has_stacks: moment.has_stacks,
        }
    }

    fn from_stop(bench: &Bench<'_>, result: &PoolReport, stop: &Stop) -> Self {
        // If memory ran out in the second pass of the replay, the recorded events still show the
        // live blocks: both passes have the same live blocks before an event.
        let events = bench.trace.events();
        let at = events.partition_point(|event| u64::from(event.number) < stop.event);
        let moment = Moment::after(bench.trace, &bench.program, at);
        let other_streams = stop.other_streams;
        let pending = stop.pending;
        let free = stop.cached.saturating_sub(pending).saturating_sub(other_streams.unwrap_or(0));
        Self {
            pool: Some(result.pool.clone()),
            event: stop.event,
            time_ns: stop.time_ns,
            requested: stop.requested,
            reserved: Some(stop.reserved),
            live: stop.live,
            rounding: Some(stop.rounding),
            free: Some(free),
            pieces: None,
            largest: Some(stop.largest_cached),
            pending: Some(pending),
            other_streams,
            device_free: None,
            cause: Some(stop.cause),
            holders: moment.holders,
            has_stacks: moment.has_stacks,
        }
    }
}
