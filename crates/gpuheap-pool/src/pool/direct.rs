//! The pools `none` and `driver` make a driver call for every request.
//!
//! `driver` uses a stream-ordered pool of the driver. That pool executes a free in the order of its
//! stream. `none` uses plain allocations and caches nothing. A free in `none` blocks the host until
//! the stream has reached the free, then gives back the memory with `cuMemFree`. `cuMemFree` waits
//! for all work of the device (H200, driver 580).

use rustc_hash::FxHashMap;

use super::slot_map::SlotMap;
use super::{Cached, Environment, Forecast, Granted, Held, Outlook, Policy, Request, Shortage};
use crate::order::Order;
use crate::source::{Segment, SourceError, SourceResult};
use crate::stream::{StreamRef, Ticket};

/// The policies `none` and `driver`.
#[derive(Debug, Default)]
pub struct Direct {
    live: SlotMap<Segment>,
    /// Segments that were freed but not given back, because their stream is capturing a graph or a
    /// driver call failed.
    waiting: Vec<(Ticket, Segment)>,
    /// Last free of each stream that was passed to a pool of the driver: the free's number, keyed
    /// by the stream's slot. Until the stream's work before that free is completed, the pool cannot
    /// give back the freed memory to the device.
    given: FxHashMap<usize, u64>,
}

impl Policy for Direct {
    fn allocate(&mut self, request: Request, env: &mut Environment<'_>) -> Granted {
        if !self.waiting.is_empty() {
            env.order.poll(env.source).map_err(Shortage::Failed)?;
            self.release(u64::MAX, env).map_err(Shortage::Failed)?;
        }
        let segment = env.take(request.bytes, request.stream)?;
        Ok(self.live.hand_out(segment))
    }

    fn free(&mut self, key: u32, stream: StreamRef, env: &mut Environment<'_>) -> SourceResult {
        let Some(segment) = self.live.remove(key) else { return Ok(()) };
        if env.source.is_stream_ordered()
            && let Some(stream) = env.order.current(stream)
        {
            let given_back = env.give_back_on(segment, stream);
            let ticket = env.order.note_free(stream, env.source);
            match given_back {
                Ok(()) => {
                    let last = self.given.entry(ticket.slot()).or_default();
                    *last = ticket.number.max(*last);
                }
                // The next allocation tries the free again, so that a failed free loses no memory.
                Err(_) => self.waiting.push((ticket, segment)),
            }
            // A capture cannot contain the free, so the segment waits until the capture ends.
            return if given_back == Err(SourceError::Capturing) { Ok(()) } else { given_back };
        }
        let ticket = env.order.note_free(stream, env.source);
        self.waiting.push((ticket, segment));
        if !env.source.is_stream_ordered() {
            // A capturing stream has no fence to wait for, so segments freed on it stay in
            // `waiting`.
            for fence in env.order.pending_fences(env.source)? {
                env.source.wait(fence)?;
            }
        }
        env.order.poll(env.source)?;
        self.release(u64::MAX, env).map(|_| ())
    }

    fn release(&mut self, _target: u64, env: &mut Environment<'_>) -> SourceResult<u64> {
        let mut released = 0;
        let mut position = 0;
        while let Some(&(ticket, segment)) = self.waiting.get(position) {
            if env.order.is_fence_reached(ticket) {
                env.give_back(segment)?;
                self.waiting.swap_remove(position);
                released += segment.bytes;
            } else {
                position += 1;
            }
        }
        Ok(released)
    }

    fn release_at(&mut self, _address: u64, env: &mut Environment<'_>) -> SourceResult<u64> {
        // Gives back as much as possible, because this policy caches nothing.
        self.release(u64::MAX, env)
    }

    fn forecast(&self, bytes: u64, outlook: &Outlook<'_>) -> Forecast {
        let waiting = self.waiting.iter();
        let (held, over): (Vec<_>, Vec<_>) =
            waiting.partition(|(ticket, _)| outlook.stuck.holds(*ticket));
        let held = held.iter().map(|(_, segment)| segment.bytes);
        let spare = over.iter().map(|(_, segment)| *segment).collect();
        let mut given = self.given.iter().map(|(slot, number)| Ticket::new(*slot as u32, *number));
        // The free memory in a pool of the driver is unknown here.
        Forecast {
            take: bytes,
            take_whole: bytes,
            spare,
            stuck: held.sum(),
            driver_is_stuck: given.any(|ticket| outlook.stuck.holds(ticket)),
            ..Forecast::default()
        }
    }

    fn cached(&self, stream: Option<StreamRef>, order: &Order) -> Cached {
        let mut cached = Cached::default();
        for (ticket, segment) in &self.waiting {
            cached.add(segment.bytes, *ticket, stream, order);
        }
        cached
    }

    fn held(&self) -> Held {
        Held::whole(self.live.values())
    }

    #[cfg(any(test, feature = "testing"))]
    fn live(&self) -> Vec<Segment> {
        self.live.values().copied().collect()
    }
}
