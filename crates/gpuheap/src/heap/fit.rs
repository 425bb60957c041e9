//! Whether a request would succeed, and what stands in its way.

use std::fmt;

use serde::Serialize;

use crate::error::{Cause, Error};
use crate::heap::Heap;
use crate::heap::climb::Figures;
use crate::heap::siblings::OtherHeaps;
use crate::heap::store::State;
use crate::kind::MemoryKind;
use crate::pool::{Cached, Shortage};
use crate::size::Bytes;
use crate::source::{GRANULE, SourceError, round_up};

/// Whether a request would succeed. From [`Heap::would_fit`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Fit {
    /// It would.
    Yes {
        /// Bytes that it would take from the driver; none where the cache can serve it.
        take: u64,
    },
    /// It would not, even after all that is cached went back.
    No {
        /// How much more would have to be free, or allowed, bytes.
        short_by: u64,
        /// What is in the way, as [`OutOfMemory`](crate::OutOfMemory) would say.
        cause: Cause,
        /// What there is that could make room: one of these that is enough, or for a request larger
        /// than the limit the limit and what else it takes. Empty where nothing could: a request larger
        /// than the device.
        would_have_to_go: Vec<InTheWay>,
    },
}

/// One thing that could make room for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum InTheWay {
    /// The hard limit, which is too low by this many bytes.
    Limit(u64),
    /// Memory that is live in this heap, this many bytes of it.
    Live(u64),
    /// Memory that other heaps of this process cannot give back by themselves, this many bytes: live,
    /// or in segments that are in use.
    OtherHeaps(u64),
    /// What others hold of the device, bytes: other libraries of this process, contexts, other
    /// processes.
    Others(u64),
}

impl Fit {
    /// Whether the request would succeed.
    pub fn is_yes(&self) -> bool {
        matches!(self, Fit::Yes { .. })
    }
}

impl Heap {
    /// Whether [`allocate`](Heap::allocate) would serve a request of `bytes` as things are, or how
    /// many bytes are missing and what would have to go. Takes nothing, gives nothing back and waits
    /// for nothing; it looks through what is cached.
    ///
    /// Pending frees count as over and cached memory as given back, as the ladder would see to, that of
    /// other heaps of this process included.
    /// Registered reclaimers are not asked, so a request may succeed that this says no to.
    ///
    /// A yes may come too late: other threads and other processes go on. And it is about bytes; of
    /// `driver` heaps and on a nearly full device the driver decides by what it keeps to
    /// itself. There the answer is close: a pool of the driver's may hold bytes in pieces that are
    /// too small, and a request of up to 2 MiB may still find room in a granule that is in use.
    ///
    /// # Errors
    ///
    /// The driver's own, where it is asked.
    pub fn would_fit(&self, bytes: u64) -> Result<Fit, Error> {
        self.handle.context.check_alive()?;
        let others = self.handle.device.others();
        Ok(self.handle.device.lock().would_fit(bytes, others)?)
    }
}

impl State {
    fn would_fit(&mut self, bytes: u64, others: OtherHeaps) -> Result<Fit, SourceError> {
        if bytes == 0 {
            return Ok(Fit::Yes { take: 0 });
        }
        self.gather();
        let mut outlook = self.policy.outlook(bytes);
        outlook.spare.extend_from_slice(&self.stranded);
        let regained = self.source.regained(&outlook.spare)?;
        let spare: u64 = outlook.spare.iter().map(|segment| segment.bytes).sum();
        let now = self.figures(MemoryKind::Device, None, others);
        let left = Cached {
            bytes: now.cached.bytes.saturating_sub(spare),
            largest: outlook.largest_left,
            ..Cached::default()
        };
        // As they would be at the end of the ladder.
        let figures = Figures {
            cached: left,
            reserved: now.reserved.saturating_sub(regained),
            device_free: now.device_free.saturating_add(regained).saturating_add(others.spare),
            others: others.without_spare(),
            ..now
        };
        let shortage = match self.refuse(bytes) {
            Err(shortage) => shortage,
            Ok(()) => {
                let ordered = self.source.is_stream_ordered();
                if outlook.is_cached || ordered && regained >= bytes {
                    return Ok(Fit::Yes { take: 0 });
                }
                let growth = self.source.growth(outlook.take);
                // On a nearly full device a pool of the driver's takes less than its step.
                let least = if ordered { round_up(outlook.take, GRANULE) } else { growth };
                let grown = figures.reserved.saturating_add(growth);
                if figures.limit.is_some_and(|limit| grown > limit) {
                    Shortage::Limit(growth)
                } else if figures.device_free < least {
                    Shortage::Device(least)
                } else {
                    return Ok(Fit::Yes { take: outlook.take });
                }
            }
        };
        let (cause, short_by) = figures.judge(bytes, &shortage);
        let would_have_to_go = self.in_the_way(&figures, cause, short_by, shortage.missing());
        Ok(Fit::No { short_by, cause, would_have_to_go })
    }

    fn in_the_way(
        &self,
        figures: &Figures,
        cause: Cause,
        short_by: u64,
        needed: u64,
    ) -> Vec<InTheWay> {
        let limit = match (cause, figures.limit) {
            (Cause::LargerThanDevice, _) => return Vec::new(),
            (Cause::LargerThanLimit, _) => short_by,
            (_, Some(limit)) => figures.reserved.saturating_add(needed).saturating_sub(limit),
            (_, None) => 0,
        };
        let live = self.ledger.live_blocks;
        let is_full = figures.device_free < needed;
        let (heaps, others) =
            if is_full { (figures.others.reserved, figures.foreign()) } else { (0, 0) };
        let (limit, live) = (InTheWay::Limit(limit), InTheWay::Live(live));
        let all = [limit, live, InTheWay::OtherHeaps(heaps), InTheWay::Others(others)];
        all.into_iter().filter(|one| one.bytes() > 0).collect()
    }
}

impl InTheWay {
    /// How many bytes it is about.
    pub fn bytes(self) -> u64 {
        match self {
            InTheWay::Limit(bytes)
            | InTheWay::Live(bytes)
            | InTheWay::OtherHeaps(bytes)
            | InTheWay::Others(bytes) => bytes,
        }
    }
}

impl fmt::Display for InTheWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = Bytes(self.bytes());
        match self {
            InTheWay::Limit(_) => write!(f, "raise the limit by {bytes}"),
            InTheWay::Live(_) => write!(f, "free some of the {bytes} that are live here"),
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
            Fit::Yes { take: 0 } => f.write_str("yes, without taking more from the driver"),
            Fit::Yes { take } => write!(f, "yes, by taking {} from the driver", Bytes(*take)),
            Fit::No { short_by, cause, would_have_to_go } => {
                write!(f, "no, {} short: {cause}", Bytes(*short_by))?;
                for (index, one) in would_have_to_go.iter().enumerate() {
                    let before = match (index, cause) {
                        (0, _) => "; ",
                        // Nothing that is freed helps as long as that is so.
                        (_, Cause::LargerThanLimit) => ", and ",
                        _ => ", or ",
                    };
                    write!(f, "{before}{one}")?;
                }
                Ok(())
            }
        }
    }
}
