//! Recovers a request that found no memory. Runs the reclaim steps in order, and makes the error if
//! all of them failed.

use std::time::{Duration, Instant};

use gpuheap_pool::{BlockRef, Cached, Shortage, SourceError, SourceResult, StreamRef};

use crate::error::{Cause, Error, Fault, OutOfMemory, RECLAIM_STEPS, ReclaimStep};
use crate::heap::fit::Foreseen;
use crate::heap::requests::note_shortage;
use crate::heap::siblings::MOST_ROUNDS;
use crate::heap::store::{Store, StoreState};
use crate::heap::usage::OtherHeaps;
use crate::kind::MemoryKind;
use crate::logging;
use crate::size::Bytes;
use crate::stream::Stream;
use crate::total_limit::TotalLimit;

/// Longest wait of the reclaim steps on WSL2, whose host returns memory late.
const LATE_RELEASE: Duration = Duration::from_secs(2);
/// Bytes that contexts and modules of this process may take before the error names other processes
/// as the cause. A bare context takes 527 MiB on an H200 (driver 580).
const CONTEXT_ALLOWANCE: u64 = 1 << 30;

/// Steps run so far, with the bytes that each returned to the driver.
pub(crate) type Tried = Vec<(ReclaimStep, u64)>;

/// Result of an attempt to allocate after a reclaim step.
pub(crate) enum Attempt<T> {
    Got(T),
    /// Memory is still short.
    Short(Missing),
    /// Memory is short even after all reclaim steps. The error has the figures.
    Exhausted(Missing, Error),
    /// The failure is not about memory, or nothing more can be done.
    Failed(Error),
}

/// Approximate bytes that a request lacks, and the obstacle: a limit or the device's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Missing {
    pub(crate) bytes: u64,
    /// `true` if a limit is the obstacle, so that more memory of the device does not help.
    pub(crate) is_limited: bool,
}

impl Missing {
    /// Returns the missing bytes if a limit is the obstacle.
    fn limited(self) -> Option<u64> {
        self.is_limited.then_some(self.bytes)
    }

    /// Memory that the device lacks.
    pub(crate) fn on_device(bytes: u64) -> Missing {
        Missing { bytes, is_limited: false }
    }
}

impl From<&Shortage> for Missing {
    fn from(shortage: &Shortage) -> Missing {
        let is_limited = matches!(shortage, Shortage::Limit(_));
        Missing { bytes: shortage.missing(), is_limited }
    }
}

/// Locked state of a store, for an attempt in the last reclaim step.
pub(crate) struct Last<'a> {
    pub(crate) state: &'a mut StoreState,
    /// Memory of other heaps, read shortly before the store was locked.
    pub(crate) others: OtherHeaps,
}

impl Store {
    /// Runs `take`, a call that takes memory from the driver without the pool. If the driver has no
    /// memory left, runs the reclaim steps, and `take` after each step.
    pub(crate) fn recover_with(
        &self,
        bytes: u64,
        stream: &Stream,
        mut take: impl FnMut() -> SourceResult,
    ) -> Result<(), Error> {
        match take() {
            Err(SourceError::OutOfMemory) => {}
            taken => return Ok(taken?),
        }
        let missing = Missing::on_device(bytes);
        let recovered = self.retry_with_reclaim(missing, |_, _| match take() {
            Ok(()) => Attempt::Got(()),
            Err(SourceError::OutOfMemory) => Attempt::Short(missing),
            Err(error) => Attempt::Failed(error.into()),
        });
        recovered.unwrap_or_else(|tried| {
            let others = self.others();
            let mut state = self.lock();
            let stream = state.stream(stream);
            Err(self.evidence(
                &mut state,
                bytes,
                stream,
                &Shortage::OutsidePool(bytes),
                tried,
                others,
            ))
        })
    }

    /// Runs the reclaim steps for a request that found no memory.
    #[cold]
    pub(crate) fn recover(
        &self,
        bytes: u64,
        stream: StreamRef,
        first: Shortage,
    ) -> Result<BlockRef, Error> {
        note_shortage(&self.context);
        if self.lock().refuse(bytes).is_err() {
            let others = self.others();
            return Err(self.evidence(&mut self.lock(), bytes, stream, &first, Vec::new(), others));
        }
        let mut last = first.clone();
        let recovered = self.retry_with_reclaim(Missing::from(&first), |held, tried| {
            let attempt = match held {
                None => {
                    let mut state = self.lock();
                    // Merges this thread's counts first. Otherwise memory that a reclaim step freed
                    // on this thread would count as live together with the request.
                    state.merge_counts();
                    state.allocate(bytes, stream)
                }
                Some(Last { state, others }) => match state.allocate(bytes, stream) {
                    // Builds the error before the store's lock is released, so that the figures
                    // describe this attempt.
                    Err(shortage @ (Shortage::Limit(_) | Shortage::Device(_))) => {
                        let tried = tried.to_vec();
                        let missing = Missing::from(&shortage);
                        let error = self.evidence(state, bytes, stream, &shortage, tried, others);
                        return Attempt::Exhausted(missing, error);
                    }
                    attempt => attempt,
                },
            };
            match attempt {
                Ok(grant) => Attempt::Got(grant),
                Err(Shortage::Failed(error)) => Attempt::Failed(error.into()),
                Err(shortage) => {
                    last = shortage;
                    Attempt::Short(Missing::from(&last))
                }
            }
        });
        recovered.unwrap_or_else(|tried| {
            let others = self.others();
            Err(self.evidence(&mut self.lock(), bytes, stream, &last, tried, others))
        })
    }

    /// Runs the reclaim steps in order, with an attempt after each step. The last attempt gets the
    /// locked state; the other attempts take the lock themselves. If even the last attempt was
    /// short of memory, returns the steps tried.
    pub(crate) fn retry_with_reclaim<T>(
        &self,
        mut missing: Missing,
        mut attempt: impl FnMut(Option<Last<'_>>, &Tried) -> Attempt<T>,
    ) -> Result<Result<T, Error>, Tried> {
        let mut tried = Vec::new();
        for step in RECLAIM_STEPS {
            let next = if step == ReclaimStep::Alone {
                let last = self.retry_alone(&mut tried, &mut attempt);
                self.log_step(step, tried.last().map_or(0, |last| last.1), missing.bytes);
                last
            } else {
                let Some(regained) = self.take_step(step, missing) else { continue };
                tried.push((step, regained));
                self.log_step(step, regained, missing.bytes);
                attempt(None, &tried)
            };
            match next {
                Attempt::Got(got) => return Ok(Ok(got)),
                Attempt::Short(still) => missing = still,
                Attempt::Exhausted(_, error) | Attempt::Failed(error) => return Ok(Err(error)),
            }
        }
        Err(tried)
    }

    /// Runs the last reclaim step: makes attempts with other threads paused, and repeats them while
    /// other heaps give back memory in between.
    fn retry_alone<T>(
        &self,
        tried: &mut Tried,
        attempt: &mut impl FnMut(Option<Last<'_>>, &Tried) -> Attempt<T>,
    ) -> Attempt<T> {
        tried.push((ReclaimStep::Alone, 0));
        let _turn = self.context.turn.take();
        let _turn_of_total = self.total.as_ref().map(|total| total.turn().take());
        let mut rounds = 0;
        loop {
            let others = self.others();
            let is_capturing = self.context.holders.is_any_capturing();
            let last = {
                let mut state = self.lock();
                state.pause_other_threads();
                self.reclaim_everything(&mut state, is_capturing);
                let last = attempt(Some(Last { state: &mut state, others }), tried);
                state.resume_other_threads();
                last
            };
            let Attempt::Exhausted(missing, _) = &last else { return last };
            rounds += 1;
            if rounds == MOST_ROUNDS {
                return last;
            }
            let regained = self.reclaim_from_others(missing.limited(), u64::MAX).unwrap_or(0);
            // Meanwhile, a request on another device may have ended and released its share of the
            // total limit.
            let has_room = missing.limited().is_some_and(|bytes| {
                self.lock().left_of_total(bytes).is_some_and(|left| left >= bytes)
            });
            if regained == 0 && !has_room {
                return last;
            }
            if let Some((_, sum)) = tried.last_mut() {
                *sum = sum.saturating_add(regained);
            }
        }
    }

    /// Logs a reclaim step. Call it with no lock held: the logger may use the heap.
    fn log_step(&self, step: ReclaimStep, regained: u64, missing: u64) {
        logging::debug(
            logging::RECLAIM,
            format_args!(
                "{} memory of {} is short of {}: {step}; {} went back to the driver",
                self.kind,
                self.context,
                Bytes(missing),
                Bytes(regained)
            ),
        );
    }

    /// Waits for pending frees and returns all cached memory to the driver, with the lock held.
    /// Ignores a failure: if memory is missing because of it, the next attempt to allocate fails.
    fn reclaim_everything(&self, state: &mut StoreState, is_capturing: bool) {
        let _ = state.wait_for_pending().and_then(|()| {
            if state.order.needs_device() && !is_capturing {
                let _ = state.synchronize(&self.context);
            }
            state.release(u64::MAX)
        });
        if state.source.is_stream_ordered() {
            if !is_capturing {
                let _ = state.synchronize(&self.context);
            }
            let _ = state.source.trim();
        }
    }

    /// Runs one reclaim step. Returns the bytes that the driver regained, or `None` if the step
    /// does not apply. A failure of the step shows in the next attempt to allocate.
    fn take_step(&self, step: ReclaimStep, missing: Missing) -> Option<u64> {
        let (limited, Missing { bytes: missing, is_limited }) = (missing.limited(), missing);
        let regained = match step {
            ReclaimStep::Ready => self.lock().poll().map(|()| 0),
            ReclaimStep::InFlight => self.wait_for_pending().map(|()| 0),
            ReclaimStep::Cache => {
                let mut state = self.lock();
                let available = state.available().unwrap_or(0);
                state.release(missing.saturating_sub(available))
            }
            ReclaimStep::WholeCache => self.lock().release(u64::MAX),
            ReclaimStep::OtherHeaps => {
                let left = match is_limited {
                    true => self.lock().left_of_total(missing)?,
                    false => self.lock().source.device_memory().unwrap_or_default().0,
                };
                return self.reclaim_from_others(limited, missing.saturating_sub(left));
            }
            ReclaimStep::WholeOtherHeaps => return self.reclaim_from_others(limited, u64::MAX),
            ReclaimStep::Reclaimers => {
                let regained = self.reclaimers.call_all(missing)?;
                // Reclaimers may free memory of other heaps, so these heaps give back cached memory
                // again.
                let others = self.reclaim_from_others(limited, u64::MAX);
                return Some(regained.max(others.unwrap_or(0)));
            }
            ReclaimStep::DriverPool => {
                if !self.lock().source.is_stream_ordered() {
                    return None;
                }
                if self.context.holders.is_any_capturing() {
                    return Some(0);
                }
                self.synchronize().and_then(|()| self.lock().source.trim())
            }
            ReclaimStep::LateRelease => {
                if !self.context.is_wsl2() {
                    return None;
                }
                let start = Instant::now();
                while start.elapsed() < LATE_RELEASE
                    && self.lock().available().is_ok_and(|available| available < missing)
                {
                    std::thread::sleep(Duration::from_millis(50));
                }
                Ok(0)
            }
            ReclaimStep::Alone => return None,
        };
        Some(regained.unwrap_or(0))
    }

    pub(crate) fn evidence(
        &self,
        state: &mut StoreState,
        bytes: u64,
        stream: StreamRef,
        shortage: &Shortage,
        tried: Vec<(ReclaimStep, u64)>,
        others: OtherHeaps,
    ) -> Error {
        state.flush_caches();
        let mut figures = state.figures(self.kind, Some(stream), others);
        if matches!(shortage, Shortage::OutsidePool(_)) {
            // The limits do not apply to memory outside the pool.
            (figures.hard, figures.total) = (None, None);
        }
        let (cause, lack, [over_hard, over_total]) = state.diagnose(bytes, shortage, &figures);
        state.note_refusal(cause, &figures, lack.needed);
        let raised = figures.hard.map(|limit| limit.saturating_add(over_hard));
        let Figures { cached, reserved, hard: limit, .. } = figures;
        let total = self.total.as_ref().filter(|_| figures.total.is_some());
        Fault::OutOfMemory(OutOfMemory {
            requested: bytes,
            kind: self.kind,
            pool: self.pool,
            cause,
            short_by: lack.short_by(),
            limit_short_by: over_hard,
            total_short_by: over_total,
            device_short_by: lack.device,
            needed: lack.needed,
            live: state.stats.live,
            live_blocks: state.stats.live_blocks,
            pending: cached.pending,
            cached: cached.bytes,
            largest_cached_block: cached.largest,
            largest_stitchable: cached.largest_request(),
            cached_on_other_streams: cached.on_other_streams,
            reserved,
            other_heaps: figures.others.reserved,
            other_heaps_cached: figures.others.cached,
            foreign: figures.foreign(),
            device: figures.total(),
            device_free: figures.free(),
            limit,
            total_limit: total.map(TotalLimit::bytes),
            device_name: self.context.sibling_name(),
            devices: total.map_or_else(Vec::new, TotalLimit::by_device),
            limit_is_fixed: over_hard > 0 && raised.is_some_and(|hard| !state.source.allows(hard)),
            on_wsl2: self.context.is_wsl2(),
            consumers: Vec::new(),
            tried,
        })
        .into()
    }
}

/// Bytes that each user of the memory holds. The evidence of a failed request has these figures.
#[derive(Clone, Debug)]
pub(crate) struct Figures {
    pub(crate) kind: MemoryKind,
    pub(crate) cached: Cached,
    pub(crate) reserved: u64,
    pub(crate) capacity: u64,
    /// Free and total bytes of the device, or the driver's error.
    pub(crate) memory: SourceResult<(u64, u64)>,
    /// Hard limit of the store.
    pub(crate) hard: Option<u64>,
    /// Maximum number of bytes that the store may reserve under the total limit.
    pub(crate) total: Option<u64>,
    pub(crate) others: OtherHeaps,
}

/// Bytes that a request lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lack {
    /// Bytes that the request would take from the driver, rounded up as the driver does.
    pub(crate) needed: u64,
    /// Bytes by which the hard limit and the total limit are too low for the request.
    pub(crate) limit: u64,
    /// Bytes by which the device's free memory is too small. `None` if the driver does not report
    /// free memory, or refuses memory that it reports as free.
    pub(crate) device: Option<u64>,
}

impl Lack {
    /// Returns the bytes that must return to the driver for a request to succeed; `None` if
    /// unknown.
    pub(crate) fn short_by(&self) -> Option<u64> {
        match (self.limit, self.device) {
            (0, device) => device,
            (limit, device) => Some(limit.max(device.unwrap_or(0))),
        }
    }

    pub(crate) fn is_none(&self) -> bool {
        self.short_by() == Some(0)
    }
}

impl StoreState {
    /// Returns the current figures, with the cached bytes as `stream` sees them. If the driver does
    /// not report the reserved bytes, the bytes requested from the driver are used.
    pub(crate) fn figures(
        &mut self,
        kind: MemoryKind,
        stream: Option<StreamRef>,
        others: OtherHeaps,
    ) -> Figures {
        let cached = self.policy.cached(stream, &self.order);
        let reserved = self.source.reserved().unwrap_or(self.stats.taken);
        let capacity = self.source.capacity();
        let memory = self.source.device_memory();
        let (hard, total) = (self.limits.hard, self.total_with(0));
        Figures { kind, cached, reserved, capacity, memory, hard, total, others }
    }

    /// Finds three things: the cause of a `shortage`, the bytes that the request lacked, and the
    /// bytes that it lacked [under each limit](Figures::over_limits). The request was for `bytes`,
    /// and `now` has the figures at the time of the shortage.
    fn diagnose(
        &mut self,
        bytes: u64,
        shortage: &Shortage,
        now: &Figures,
    ) -> (Cause, Lack, [u64; 2]) {
        // Makes no forecast for a request outside the pool: the pool's figures do not apply to it.
        let foreseen = match shortage {
            Shortage::OutsidePool(_) => None,
            _ => self.foresee(bytes, now.kind, now.others).ok(),
        };
        if let Some(Foreseen::Lacking(then, lack, captured)) = foreseen {
            return (captured.find_cause(bytes, &then, &lack), lack, then.over_limits(&lack));
        }
        // Either there is no forecast, or the forecast is that the request fits once all frees have
        // completed. So computes the missing bytes from the figures at the time of the shortage.
        let lack = now.lack_after(shortage);
        let over = now.over_limits(&lack);
        if now.cached.pending > 0 && self.order.is_any_capturing(&mut *self.source).unwrap_or(false)
        {
            return (Cause::Capture, lack, over);
        }
        (now.find_cause(bytes, &lack), lack, over)
    }

    /// If the driver refused memory that it reported as free, stores by how much the free bytes
    /// exceeded the request.
    fn note_refusal(&mut self, cause: Cause, figures: &Figures, needed: u64) {
        if cause == Cause::Refused
            && let Some(free) = figures.free()
        {
            let margin = free.saturating_sub(needed);
            let stats = &mut self.stats;
            stats.refused_margin = Some(stats.refused_margin.unwrap_or(0).max(margin));
        }
    }
}

impl Figures {
    /// Returns the free and total bytes of the device or the host, if they are known.
    fn known(&self) -> Option<(u64, u64)> {
        self.memory.as_ref().ok().copied().filter(|(free, _)| *free < u64::MAX)
    }

    /// Returns the bytes that the driver reports as free; `None` if it does not report them.
    pub(crate) fn free(&self) -> Option<u64> {
        self.known().map(|(free, _)| free)
    }

    /// Returns the size of the device's memory, or of the host's.
    pub(crate) fn total(&self) -> Option<u64> {
        let known = self.known().map(|(_, total)| total);
        // The capacity of unified memory is `u64::MAX` if the memory may exceed the device.
        known.or(Some(self.capacity)).filter(|total| *total < u64::MAX)
    }

    /// Returns the bytes of the device that contexts, other libraries and processes hold, if the
    /// driver reports them.
    pub(crate) fn foreign(&self) -> Option<u64> {
        let (free, total) = self.known()?;
        let used = total.saturating_sub(free);
        Some(used.saturating_sub(self.reserved).saturating_sub(self.others.reserved))
    }

    /// Returns the figures with `bytes` less of free memory, and as many bytes more of cached
    /// memory of other heaps.
    pub(crate) fn without(self, bytes: u64) -> Figures {
        let Figures { memory, mut others, .. } = self;
        let memory = memory.map(|(free, total)| (free.saturating_sub(bytes), total));
        others.reserved = others.reserved.saturating_add(bytes);
        others.cached = others.cached.saturating_add(bytes);
        Figures { memory, others, ..self }
    }

    /// Computes the missing bytes of a request that adds `growth` to the reserved bytes and needs
    /// `least` free bytes of the device.
    pub(crate) fn lack(&self, growth: u64, least: u64) -> Lack {
        let grown = self.reserved.saturating_add(growth);
        let limit = self.limit().map_or(0, |limit| grown.saturating_sub(limit));
        let device = self.free().map(|free| least.saturating_sub(free));
        Lack { needed: if limit > 0 { growth } else { least }, limit, device }
    }

    /// Returns the most bytes that the store may reserve.
    pub(crate) fn limit(&self) -> Option<u64> {
        self.hard.into_iter().chain(self.total).min()
    }

    /// Returns the bytes by which the hard limit and the total limit are too low.
    pub(crate) fn over_limits(&self, lack: &Lack) -> [u64; 2] {
        let grown = self.limit().map_or(0, |limit| limit.saturating_add(lack.limit));
        [self.hard, self.total].map(|limit| match limit {
            Some(limit) if lack.limit > 0 => grown.saturating_sub(limit),
            _ => 0,
        })
    }

    /// Computes the bytes that a request lacked when the policy refused it with `shortage`.
    fn lack_after(&self, shortage: &Shortage) -> Lack {
        match *shortage {
            Shortage::Limit(needed) => {
                let lack = self.lack(needed, 0);
                // Other threads may have given back memory since the refusal. If the limit now
                // allows the request, the number of missing bytes is unknown. Then all bytes that
                // the request needed from the driver count as missing.
                Lack { needed, limit: if lack.limit == 0 { needed } else { lack.limit }, ..lack }
            }
            Shortage::Device(needed) | Shortage::OutsidePool(needed) => {
                let device = self.free().and_then(|free| needed.checked_sub(free));
                Lack { needed, limit: 0, device: device.filter(|device| *device > 0) }
            }
            Shortage::Failed(_) => Lack { needed: 0, limit: 0, device: None },
        }
    }

    /// Returns why a request of `bytes` lacks memory.
    pub(crate) fn find_cause(&self, bytes: u64, lack: &Lack) -> Cause {
        let Figures { cached, reserved, capacity, others, .. } = *self;
        let limit = self.limit();
        let needed = lack.needed;
        let within = limit.map_or(u64::MAX, |limit| limit.saturating_sub(reserved));
        let available = self.free().unwrap_or(0).min(within);
        match () {
            () if bytes > capacity => Cause::LargerThanDevice,
            () if self.hard.is_some_and(|limit| bytes > limit) => Cause::LargerThanLimit,
            // The request is too large only because of the pool's rounding.
            () if needed > capacity => Cause::LargerThanDevice,
            () if self.hard.is_some_and(|limit| needed > limit) => Cause::LargerThanLimit,
            // New memory can extend a free piece, so `needed` may be less than the request. Cached
            // and available bytes together have to hold all of the request.
            () if cached.largest_request() < bytes
                && cached.bytes > 0
                && cached.bytes.saturating_add(available) >= needed.max(bytes) =>
            {
                Cause::Fragmentation
            }
            () if lack.limit > 0 && limit != self.hard => Cause::TotalLimit,
            () if lack.limit > 0 => Cause::Limit,
            () if lack.device.is_none() => Cause::Refused,
            () if others.reserved > reserved
                && available.saturating_add(others.reserved) >= needed =>
            {
                Cause::OtherHeaps
            }
            () if self.foreign().is_some_and(|foreign| foreign > 0)
                && self.total().is_some_and(|device| {
                    reserved.saturating_add(needed).saturating_add(CONTEXT_ALLOWANCE) <= device
                }) =>
            {
                Cause::Foreign
            }
            () => Cause::DeviceFull,
        }
    }
}
