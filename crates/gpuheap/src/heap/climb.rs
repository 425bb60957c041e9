//! How the ladder is climbed, and what is said when its end is reached.

use std::time::{Duration, Instant};

use crate::error::{Cause, Error, Fault, OutOfMemory};
use crate::heap::ladder::{LADDER, Step};
use crate::heap::order::StreamRef;
use crate::heap::store::{State, Store};
use crate::kind::MemoryKind;
use crate::pool::{Cached, Shortage};

/// How long the ladder waits on WSL2 for memory that the host gives back late.
const LATE_RELEASE: Duration = Duration::from_secs(2);
/// What contexts and modules of this process may take before "others hold the rest of the device"
/// is the honest cause. A bare context takes 527 MiB on an H200 (driver 580).
const CONTEXT_ALLOWANCE: u64 = 1 << 30;

/// The steps climbed so far, with the bytes that each gave back to the driver.
pub(crate) type Tried = Vec<(Step, u64)>;

/// How a try after a step went.
pub(crate) enum Attempt<T> {
    Got(T),
    /// There is no memory yet; about this much is missing.
    Short(u64),
    /// Memory is not what is wrong, or nothing more can be done.
    Failed(Error),
}

impl Store {
    /// Climbs: does each step in turn and tries again after it. The last attempt is given the lock,
    /// which the others must take themselves. What was tried, where even that one was short.
    pub(crate) fn climb<T>(
        &self,
        mut missing: u64,
        mut attempt: impl FnMut(Option<&mut State>, &Tried) -> Attempt<T>,
    ) -> Result<Result<T, Error>, Tried> {
        let mut tried = Vec::new();
        for step in LADDER {
            let next = if step == Step::Alone {
                let mut state = self.lock();
                state.hold_off();
                self.everything(&mut state);
                tried.push((step, 0));
                let last = attempt(Some(&mut state), &tried);
                state.let_on();
                last
            } else {
                let Some(regained) = self.take_step(step, missing) else { continue };
                tried.push((step, regained));
                attempt(None, &tried)
            };
            match next {
                Attempt::Got(got) => return Ok(Ok(got)),
                Attempt::Short(still) => missing = still,
                Attempt::Failed(error) => return Ok(Err(error)),
            }
        }
        Err(tried)
    }

    /// Nothing here can make it worse: what fails shows in the attempt after it.
    fn everything(&self, state: &mut State) {
        let _ = state.wait_for_pending().and_then(|()| state.release(u64::MAX));
        if state.source.is_stream_ordered() {
            let _ = state.synchronize(&self.context);
            let _ = state.source.trim();
        }
    }

    /// One step of the ladder: the bytes that the driver got back by it, or `None` where it does
    /// not apply. What fails in a step shows in the attempt after it.
    fn take_step(&self, step: Step, missing: u64) -> Option<u64> {
        let regained = match step {
            Step::Ready => self.lock().poll().map(|()| 0),
            Step::InFlight => self.wait_for_pending().map(|()| 0),
            Step::Cache => {
                let mut state = self.lock();
                let available = state.available().unwrap_or(0);
                state.release(missing.saturating_sub(available))
            }
            Step::WholeCache => self.lock().release(u64::MAX),
            Step::Reclaimers => return self.reclaimers.ask(missing),
            Step::DriverPool => {
                if !self.lock().source.is_stream_ordered() {
                    return None;
                }
                self.synchronize().and_then(|()| self.lock().source.trim())
            }
            Step::LateRelease => {
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
            Step::Alone => return None,
        };
        Some(regained.unwrap_or(0))
    }

    pub(crate) fn evidence(
        &self,
        state: &mut State,
        bytes: u64,
        stream: StreamRef,
        shortage: &Shortage,
        tried: Vec<(Step, u64)>,
    ) -> Error {
        state.gather();
        let figures = state.figures(self.kind, Some(stream));
        let (mut cause, short_by) = figures.judge(bytes, shortage);
        if figures.cached.pending > 0
            && !matches!(cause, Cause::LargerThanDevice | Cause::LargerThanLimit)
            && state.order.is_any_capturing(&mut *state.source).unwrap_or(false)
        {
            cause = Cause::Capture;
        }
        let Figures { cached, reserved, device, device_free, limit, .. } = figures;
        Fault::OutOfMemory(OutOfMemory {
            requested: bytes,
            kind: self.kind,
            pool: self.pool,
            cause,
            short_by,
            live: state.ledger.live,
            live_blocks: state.ledger.live_blocks,
            pending: cached.pending,
            cached: cached.bytes,
            largest_cached_block: cached.largest,
            cached_on_other_streams: cached.on_other_streams,
            reserved,
            foreign: figures.foreign(),
            device,
            device_free,
            limit,
            on_wsl2: self.context.is_wsl2(),
            consumers: Vec::new(),
            tried,
        })
        .into()
    }
}

/// Who has how much, bytes: what is said of a request that there is no memory for comes from these.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures {
    pub(crate) kind: MemoryKind,
    pub(crate) cached: Cached,
    pub(crate) reserved: u64,
    pub(crate) capacity: u64,
    pub(crate) device: u64,
    pub(crate) device_free: u64,
    pub(crate) limit: Option<u64>,
}

impl State {
    /// The figures as they are, seen from `stream`; where the driver does not answer, what is known
    /// without it.
    pub(crate) fn figures(&mut self, kind: MemoryKind, stream: Option<StreamRef>) -> Figures {
        let cached = self.policy.cached(stream, &self.order);
        let reserved = self.source.reserved().unwrap_or(self.ledger.taken);
        let capacity = self.source.capacity();
        let (device_free, device) = self.source.device_memory().unwrap_or((0, capacity));
        let limit = self.limits.hard;
        Figures { kind, cached, reserved, capacity, device, device_free, limit }
    }
}

impl Figures {
    /// What others hold of the device.
    pub(crate) fn foreign(&self) -> u64 {
        self.device.saturating_sub(self.device_free).saturating_sub(self.reserved)
    }

    /// What is in the way of a request of `bytes` that met `shortage`, and how much is missing.
    pub(crate) fn judge(&self, bytes: u64, shortage: &Shortage) -> (Cause, u64) {
        let Figures { kind, cached, reserved, capacity, device, device_free, limit } = *self;
        let (needed, available, by_limit) = match *shortage {
            Shortage::Limit(needed) => (needed, limit.unwrap_or(0).saturating_sub(reserved), true),
            Shortage::Device(needed) => (needed, device_free, false),
            Shortage::Failed(_) => (bytes, 0, false),
        };
        let cause = match () {
            () if bytes > capacity => Cause::LargerThanDevice,
            () if limit.is_some_and(|limit| bytes > limit) => Cause::LargerThanLimit,
            // What a policy needs may leave out what it has: all of the request has to fit.
            () if cached.largest < bytes
                && cached.bytes > 0
                && cached.bytes + available >= needed.max(bytes) =>
            {
                Cause::Fragmentation
            }
            () if by_limit => Cause::Limit,
            () if kind != MemoryKind::Device && available >= needed => Cause::Refused,
            () if self.foreign() > 0
                && reserved.saturating_add(needed).saturating_add(CONTEXT_ALLOWANCE) <= device =>
            {
                Cause::Foreign
            }
            () => Cause::DeviceFull,
        };
        let short_by = match cause {
            Cause::LargerThanDevice => bytes - capacity,
            Cause::LargerThanLimit => bytes - limit.unwrap_or(0),
            // A driver that refuses what its own figure says is free is short of all of it.
            _ if available >= needed => needed,
            _ => needed - available,
        };
        (cause, short_by)
    }
}
