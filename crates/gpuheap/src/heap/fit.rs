//! Forecasts whether a request would succeed, and the obstacles if it would not.

use std::fmt;

use gpuheap_pool::{
    Cached, Forecast, GRANULE, Headroom, MemorySource, Outlook, SourceResult, Stuck, Taking,
    round_up,
};
use serde::Serialize;

use crate::error::{Cause, Error};
use crate::heap::Heap;
use crate::heap::recovery::{Figures, Lack};
use crate::heap::store::StoreState;
use crate::heap::usage::OtherHeaps;
use crate::kind::MemoryKind;
use crate::size::Bytes;

/// Forecast for a request. Returned by [`Heap::would_fit`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Fit {
    /// The request would succeed.
    #[non_exhaustive]
    Yes {
        /// Bytes that the request would take from the driver; 0 if the cache can serve it. If the
        /// `stitched` pool maps free pieces into one range, the request may take a few MiB more.
        /// While the device is far from full, `stitched` takes [more than the request
        /// needs](crate::HeapBuilder::slack).
        take: u64,
        /// Upper bound of the bytes that the request would take from the driver, on any stream. The
        /// bound exceeds `take` if another stream still uses the cached memory for the request. A
        /// heap that has reserved little then takes new memory instead of making the stream wait;
        /// the [guide](crate::guide::streams) has the threshold. If the `stitched` pool maps free
        /// pieces into one range, the request may exceed this bound by a few MiB.
        at_most: u64,
    },
    /// The driver reports enough memory as free, but may refuse it. The forecast is `Perhaps` in
    /// these cases:
    ///
    /// * On WSL2, the request would leave less than a fifth of the heap's possible memory free.
    ///   Windows lends memory that it may not have.
    /// * The driver refused an earlier request that would have left at least as much free memory as
    ///   this request, and has not granted such a request since.
    /// * The request needs more memory, and the driver does not report how much is free.
    /// * The request needs free memory that may share a piece of the device with memory in use. The
    ///   piece is a granule of 2 MiB that small segments of several heaps share, or a step of 32
    ///   MiB in the driver's pool of another heap. The driver does not report which part of a step
    ///   is in use.
    #[non_exhaustive]
    Perhaps {
        /// Bytes that the request would take from the driver.
        take: u64,
        /// Bytes that the driver would report as free before the request, after all cached memory
        /// was given back. `None` if it does not report them.
        free: Option<u64>,
    },
    /// The request would fail, even after all cached memory was given back.
    #[non_exhaustive]
    No {
        /// Missing bytes. If this many bytes return to the driver, or the limit is raised by this
        /// many, the request succeeds. Free pieces next to live blocks do not lower the figure,
        /// because they return to the driver only together with those blocks. Only a `stitched`
        /// pool may need fewer bytes, because it can join two such pieces. The figure may be too
        /// low on WSL2, and if the driver does not report how much is free.
        short_by: u64,
        /// Reason for the failure, as [`OutOfMemory`](crate::OutOfMemory) would give it.
        cause: Cause,
        /// Obstacles whose removal could make room. Removing one of them is enough, unless
        /// [all](Fit::No::needs_all) are needed. Empty if nothing helps: the request is larger than
        /// the device.
        would_have_to_go: Vec<InTheWay>,
        /// `true` if all obstacles have to be removed, `false` if removing one is enough.
        needs_all: bool,
    },
}

/// An obstacle whose removal could make room for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum InTheWay {
    /// The hard limit, with the bytes by which it is too low.
    Limit(u64),
    /// The hard limit of a `driver` heap, with the bytes by which it is too low. The limit was set
    /// when the heap was built, and cannot be raised: build another heap.
    BuiltLimit(u64),
    /// The [total limit](crate::TotalLimit), with the bytes by which it is too low.
    TotalLimit(u64),
    /// Live memory of this heap, in bytes.
    Live(u64),
    /// Bytes of this process's heaps that were freed on streams that are capturing a graph. They
    /// can be waited for once the captures end.
    Captured(u64),
    /// Bytes of other heaps of this process that those heaps cannot give back, because the bytes
    /// are live or in segments that are in use.
    OtherHeaps(u64),
    /// Bytes of the device held by other libraries of this process, by contexts and by other
    /// processes.
    Others(u64),
}

/// Forecast of a request, computed from the figures as if all frees had completed.
pub(crate) enum Foreseen {
    /// The request is served, and takes `take` bytes from the driver. The driver may keep up to
    /// `may_stay` bytes that the forecast counts as free. They share a piece of the driver's memory
    /// with memory in use.
    Served { take: u64, figures: Figures, may_stay: u64 },
    /// The request lacks memory even after all cached memory was given back.
    Lacking(Figures, Lack, Captured),
}

/// Bytes that were freed on capturing streams, if a request fails only because of these captures.
/// `None` if the request would fail even after the captures end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Captured(Option<u64>);

impl Captured {
    /// Returns why a request of `bytes` fails.
    pub(crate) fn find_cause(self, bytes: u64, figures: &Figures, lack: &Lack) -> Cause {
        if self.0.is_some() { Cause::Capture } else { figures.find_cause(bytes, lack) }
    }
}

impl Fit {
    /// Returns `true` if the request would succeed for certain.
    pub fn is_yes(&self) -> bool {
        matches!(self, Fit::Yes { .. })
    }
}

impl Heap {
    /// Forecasts whether [`allocate`](Heap::allocate) would serve a request of `bytes` now. If the
    /// request would fail, the forecast has the missing bytes and the obstacles. This call only
    /// searches the cached memory: it takes no memory, gives none back and does not wait.
    ///
    /// Pending frees count as completed. Cached memory counts as given back, also in other heaps of
    /// this process. The reclaim steps would wait for the frees and give back the memory.
    /// Registered reclaimers are not called. A request may therefore succeed although the forecast
    /// is [`No`](Fit::No).
    ///
    /// Memory freed on a stream that is capturing a graph counts as in use, because the reclaim
    /// steps cannot wait for it. A request on that stream itself may reuse the memory, and so
    /// succeed although the forecast is [`No`](Fit::No). A stream may have begun its capture before
    /// it reached earlier frees in a `driver` heap. In that case, all free memory of the `driver`
    /// heap counts as in use for other heaps, because the driver does not report which part is in
    /// use.
    ///
    /// A forecast may soon be out of date: other threads and other processes continue. A
    /// forecast also compares only numbers of bytes. For `driver` heaps and on a nearly full
    /// device, the driver's decision depends on memory that it does not report. The forecast is
    /// close there, but not exact: a driver's pool may hold bytes in pieces that are too small, and
    /// a request of up to 2 MiB may still fit into a granule that is in use.
    ///
    /// If the forecast depends on how much is free, and the driver does not report that, the
    /// forecast is [`Perhaps`](Fit::Perhaps).
    ///
    /// # Errors
    ///
    /// The process is a forked child; the device was reset; for a `driver` heap, the driver cannot
    /// report the size of its pool.
    pub fn would_fit(&self, bytes: u64) -> Result<Fit, Error> {
        self.inner().context.check_alive()?;
        let is_wsl2 = self.inner().context.is_wsl2();
        let others = self.inner().device.others();
        Ok(self.inner().device.lock().would_fit(bytes, is_wsl2, others)?)
    }
}

impl StoreState {
    fn would_fit(&mut self, bytes: u64, is_wsl2: bool, others: OtherHeaps) -> SourceResult<Fit> {
        if bytes == 0 {
            return Ok(Fit::Yes { take: 0, at_most: 0 });
        }
        let (figures, lack, captured) = match self.foresee(bytes, MemoryKind::Device, others)? {
            Foreseen::Served { take: 0, .. } => {
                return Ok(Fit::Yes { take: 0, at_most: self.taken_at_most(bytes, 0, others) });
            }
            Foreseen::Served { take, figures, may_stay } => {
                let left = figures.free().unwrap_or(0).saturating_sub(self.source.growth(take));
                let all = figures.free().unwrap_or(0).saturating_add(figures.reserved);
                let lent = is_wsl2 && left < all / LENT_SHARE;
                let may_be_refused = self.stats.refused_margin.is_some_and(|margin| left <= margin);
                return Ok(match lent || may_be_refused || left < may_stay {
                    true => Fit::Perhaps { take, free: figures.free() },
                    false => Fit::Yes { take, at_most: self.taken_at_most(bytes, take, others) },
                });
            }
            Foreseen::Lacking(figures, lack, captured) => (figures, lack, captured),
        };
        let (needed, free) = (lack.needed, figures.free());
        let beyond = bytes.max(needed).saturating_sub(figures.capacity);
        let short_by = match lack.short_by() {
            Some(short_by) => short_by,
            // The request is too large for the device, however much is free.
            None if beyond > 0 => beyond,
            None => return Ok(Fit::Perhaps { take: needed, free }),
        };
        let cause = captured.find_cause(bytes, &figures, &lack);
        let (would_have_to_go, needs_all) = self.in_the_way(&figures, cause, &lack, captured);
        Ok(Fit::No { short_by, cause, would_have_to_go, needs_all })
    }

    /// Returns the bytes that a request takes from the driver on the stream on which it takes most.
    /// `take` is the number of bytes on the stream on which it takes least.
    fn taken_at_most(&mut self, bytes: u64, take: u64, others: OtherHeaps) -> u64 {
        if !self.has_spare(bytes) {
            return take;
        }
        // If this poll fails, memory of work that has completed counts as in use.
        let _ = self.poll();
        let unreached = self.order.unreached();
        if unreached.is_empty() {
            return take;
        }
        let forecast = self.forecast(bytes, &unreached);
        let now = self.figures(MemoryKind::Device, None, others);
        let taking = match now.free() {
            Some(_) => self.first_take(&forecast, &now),
            // If free memory is unknown, the driver may grant the amount that the policy tries
            // first.
            None => forecast.takings.first().copied(),
        };
        taking.map_or(take, |taking| taking.bytes.max(take))
    }

    /// Returns the policy's forecast of a request.
    fn forecast(&mut self, bytes: u64, stuck: &Stuck) -> Forecast {
        let limits = self.limits_with(0);
        let headroom = Headroom::from_source(&mut *self.source, limits);
        self.policy.forecast(bytes, &Outlook { stats: &self.stats, headroom, stuck })
    }

    /// Forecasts the result of a request after all reclaim steps.
    pub(crate) fn foresee(
        &mut self,
        bytes: u64,
        kind: MemoryKind,
        others: OtherHeaps,
    ) -> SourceResult<Foreseen> {
        self.flush_caches();
        let stuck = self.stuck();
        let foreseen = self.foresee_with(bytes, kind, others, &stuck)?;
        match foreseen {
            Foreseen::Lacking(figures, lack, _) if !stuck.is_empty() || others.stuck > 0 => {
                let (later, none) = (others.after_captures(), Stuck::default());
                let own = match self.source.is_stream_ordered() {
                    true => self.spare(&none)?.saturating_sub(self.spare(&stuck)?),
                    false => self.forecast(bytes, &stuck).stuck,
                };
                let served = self.foresee_with(bytes, kind, later, &none)?;
                let is_enough = matches!(served, Foreseen::Served { .. });
                let captured = is_enough.then(|| own.saturating_add(others.stuck));
                Ok(Foreseen::Lacking(figures, lack, Captured(captured)))
            }
            foreseen => Ok(foreseen),
        }
    }

    /// Forecasts a request, with memory of captures counted as in use.
    fn foresee_with(
        &mut self,
        bytes: u64,
        kind: MemoryKind,
        others: OtherHeaps,
        stuck: &Stuck,
    ) -> SourceResult<Foreseen> {
        let mut forecast = self.forecast(bytes, stuck);
        forecast.spare.extend_from_slice(&self.stranded);
        let now = self.figures(kind, None, others);
        let refused = self.refuse(bytes).is_err();
        if !refused && let Some(take) = self.first_take(&forecast, &now) {
            let may_stay = if take.after > 0 { self.may_stay(&forecast)? } else { 0 };
            return Ok(Foreseen::Served { take: take.bytes, figures: now, may_stay });
        }
        let regained = self.regained(&forecast)?;
        let ordered = self.source.is_stream_ordered();
        // Zero for a `driver` heap: the code below handles the bytes that its own pool may keep.
        let own = if ordered { 0 } else { self.may_stay(&forecast)? };
        let may_stay = own.saturating_add(others.may_stay);
        let spare: u64 = forecast.spare.iter().map(|segment| segment.bytes).sum();
        let left = Cached {
            bytes: now.cached.bytes.saturating_sub(spare),
            largest: forecast.largest_left,
            ..Cached::default()
        };
        let figures = Figures {
            cached: left,
            reserved: now.reserved.saturating_sub(regained),
            memory: now.memory.clone().map(|(free, total)| {
                (free.saturating_add(regained).saturating_add(others.spare), total)
            }),
            others: others.without_spare(),
            total: self.total_with(others.under_total),
            ..now
        };
        // The driver itself orders streams that reuse memory of its pool.
        let reused = if ordered { self.source.regained(&forecast.spare)? } else { 0 };
        if !refused && (forecast.is_cached || reused >= bytes) {
            return Ok(Foreseen::Served { take: 0, figures, may_stay: 0 });
        }
        let lack_of = |source: &dyn MemorySource, figures: &Figures, take: u64| {
            let growth = source.growth(take);
            // On a nearly full device, a driver's pool grows by less than its usual step.
            figures.lack(growth, if ordered { round_up(take, GRANULE) } else { growth })
        };
        if !refused && lack_of(&*self.source, &figures, forecast.take).is_none() {
            return Ok(Foreseen::Served { take: forecast.take, figures, may_stay });
        }
        // The driver may keep `may_stay` bytes. They do not count as free, so that the number of
        // missing bytes suffices even if the driver keeps them.
        let figures = figures.without(may_stay);
        let lack = lack_of(&*self.source, &figures, forecast.take_whole);
        if ordered && regained < now.reserved {
            // A driver's pool grows in steps of 32 MiB, and may keep the free part of a step that
            // is in use. So only memory that is free now counts.
            let figures = self.figures(kind, None, others);
            let lack = lack_of(&*self.source, &figures, forecast.take_whole);
            return Ok(Foreseen::Lacking(figures, lack, Captured::default()));
        }
        Ok(Foreseen::Lacking(figures, lack, Captured::default()))
    }

    /// Returns the first of the policy's amounts that the driver could grant. The policy tries the
    /// amounts in order, and may give back bytes before an attempt. These bytes count as free.
    fn first_take(&self, forecast: &Forecast, now: &Figures) -> Option<Taking> {
        let is_available = |taking: &&Taking| {
            let growth = self.source.growth(taking.bytes);
            let reserved = now.reserved.saturating_sub(taking.after);
            let within = now.limit().is_none_or(|limit| reserved.saturating_add(growth) <= limit);
            let free = now.free().unwrap_or(0).saturating_add(taking.after);
            taking.bytes == 0 || within && growth <= free
        };
        forecast.takings.iter().find(is_available).copied()
    }

    /// Returns the obstacles to a request, and `true` if all of them have to be removed.
    fn in_the_way(
        &self,
        figures: &Figures,
        cause: Cause,
        lack: &Lack,
        captured: Captured,
    ) -> (Vec<InTheWay>, bool) {
        if cause == Cause::LargerThanDevice {
            return (Vec::new(), false);
        }
        let raised = figures.limit().unwrap_or(0).saturating_add(lack.limit);
        let [hard, total] = figures.over_limits(lack);
        let limit = match hard {
            0 if total > 0 => Some(InTheWay::TotalLimit(total)),
            0 => None,
            short if self.source.allows(raised) => Some(InTheWay::Limit(short)),
            short => Some(InTheWay::BuiltLimit(short)),
        };
        if hard > 0 && total > 0 {
            return (limit.into_iter().chain([InTheWay::TotalLimit(total)]).collect(), true);
        }
        let on_device = lack.device.unwrap_or(0);
        let is_enough = |held: u64, of: u64| held > 0 && held >= of;
        let live = |of| is_enough(figures.reserved, of).then_some(self.stats.live_blocks);
        let live = |of| live(of).filter(|live| *live > 0).map(InTheWay::Live);
        let others = |of| figures.foreign().filter(|held| is_enough(*held, of));
        let others = |of| others(of).map(InTheWay::Others);
        // Leaves out other heaps' stuck memory: it is free, and can return once the captures end.
        let heaps = figures.others.reserved.saturating_sub(figures.others.stuck);
        let heaps = |of| is_enough(heaps, of).then_some(InTheWay::OtherHeaps(heaps));
        let captured = captured.0.map(InTheWay::Captured);
        match limit {
            // While the limit is below the request, no free helps.
            Some(limit) if cause == Cause::LargerThanLimit && on_device == 0 => {
                (vec![limit], false)
            }
            Some(limit) if on_device == 0 => {
                let any = [captured, Some(limit), live(lack.limit)];
                (any.into_iter().flatten().collect(), false)
            }
            Some(_) if captured.is_some() => (captured.into_iter().collect(), false),
            Some(limit) => {
                let freed = live(on_device).or(heaps(on_device)).or(others(on_device));
                ([Some(limit), freed].into_iter().flatten().collect(), true)
            }
            None => {
                let any = [captured, live(on_device), heaps(on_device), others(on_device)];
                let any: Vec<_> = any.into_iter().flatten().collect();
                if !any.is_empty() {
                    return (any, false);
                }
                ([live(0), heaps(0), others(0)].into_iter().flatten().collect(), true)
            }
        }
    }
}

/// Fraction (1/N) of the memory that a heap could have on WSL2. The driver may refuse a request
/// that would leave less than this fraction free. A heap's default limit on WSL2 leaves this
/// fraction free.
const LENT_SHARE: u64 = 5;

impl InTheWay {
    /// Returns the bytes of the obstacle.
    pub fn bytes(self) -> u64 {
        match self {
            InTheWay::Limit(bytes)
            | InTheWay::BuiltLimit(bytes)
            | InTheWay::TotalLimit(bytes)
            | InTheWay::Live(bytes)
            | InTheWay::Captured(bytes)
            | InTheWay::OtherHeaps(bytes)
            | InTheWay::Others(bytes) => bytes,
        }
    }
}

impl fmt::Display for InTheWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = Bytes(self.bytes());
        match self {
            InTheWay::Limit(_) => write!(f, "raise the limit by {bytes:#}"),
            InTheWay::BuiltLimit(_) => {
                write!(f, "build a heap with a limit that is {bytes:#} higher")
            }
            InTheWay::TotalLimit(_) => write!(f, "raise the total limit by {bytes:#}"),
            InTheWay::Live(_) => write!(f, "free some of the {bytes} that are live here"),
            InTheWay::Captured(_) => {
                write!(f, "end the capture of a graph in which {bytes} were freed")
            }
            InTheWay::OtherHeaps(_) => {
                write!(f, "free some of the {bytes} that other heaps of this process hold")
            }
            InTheWay::Others(_) => write!(f, "free some of the {bytes} that others hold"),
        }
    }
}

impl fmt::Display for Fit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fit::Yes { at_most: 0, .. } => f.write_str("yes, without taking more from the driver"),
            Fit::Yes { take, at_most } if take == at_most => {
                write!(f, "yes, by taking {} from the driver", Bytes(*take))
            }
            Fit::Yes { take, at_most } => {
                match take {
                    0 => f.write_str("yes, without taking more from the driver")?,
                    take => write!(f, "yes, by taking {} from the driver", Bytes(*take))?,
                }
                let at_most = Bytes(*at_most);
                write!(f, ", or {at_most} for a stream that would have to wait for cached memory")
            }
            Fit::Perhaps { take, free: Some(free) } => write!(
                f,
                "perhaps, by taking {} from the driver, which calls {} free and may refuse it",
                Bytes(*take),
                Bytes(*free)
            ),
            Fit::Perhaps { take, free: None } => write!(
                f,
                "perhaps, by taking {} from the driver, which does not say how much is free",
                Bytes(*take)
            ),
            Fit::No { short_by, cause, would_have_to_go, needs_all } => {
                write!(f, "no, {} short: {cause}", Bytes(*short_by))?;
                for (index, one) in would_have_to_go.iter().enumerate() {
                    let before = match (index, needs_all) {
                        (0, _) => "; ",
                        (_, true) => ", and ",
                        (_, false) => ", or ",
                    };
                    write!(f, "{before}{one}")?;
                }
                Ok(())
            }
        }
    }
}
