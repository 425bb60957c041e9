//! The pool `binned` caches powers of two from one byte to 128 MiB in bins.
//!
//! A request is rounded up to a power of two, so less than half of a block is wasted. In a bin, the
//! last block freed is reused first. Blocks above 128 MiB are neither rounded nor cached: each is
//! given back to the driver once its stream has reached the free.

use super::free_list::FreeList;
use super::slot_map::SlotMap;
use super::{
    Cached, Environment, Forecast, Granted, Held, Outlook, Policy, Request, Rounding, Served,
    Shortage, Taking,
};
use crate::order::Order;
use crate::source::{Segment, SourceResult};
use crate::stream::StreamRef;

/// Exponent of the largest bin, 128 MiB. Bin `n` holds blocks of `2^n` bytes.
const LARGEST_BIN: u32 = 27;

/// The policy `binned`.
#[derive(Debug)]
pub struct Binned {
    live: SlotMap<Segment>,
    bins: Vec<FreeList>,
    /// Freed blocks too large for a bin. Each is given back once its stream has reached the free.
    unpooled: FreeList,
}

impl Default for Binned {
    fn default() -> Binned {
        Binned {
            live: SlotMap::default(),
            bins: (0..=LARGEST_BIN).map(|_| FreeList::default()).collect(),
            unpooled: FreeList::default(),
        }
    }
}

impl Binned {
    fn give_back_unpooled(&mut self, env: &mut Environment<'_>) -> SourceResult<u64> {
        if self.unpooled.is_empty() {
            return Ok(0);
        }
        env.order.poll(env.source)?;
        self.unpooled.release(u64::MAX, env)
    }
}

impl Policy for Binned {
    fn allocate(&mut self, request: Request, env: &mut Environment<'_>) -> Granted {
        let Request { bytes, stream } = request;
        if let Some(found) = self.reuse(request, env)? {
            return Ok(found);
        }
        let segment = env.take(rounded(bytes), stream)?;
        Ok(self.live.hand_out(segment))
    }

    fn reuse(&mut self, request: Request, env: &mut Environment<'_>) -> Served {
        let Request { bytes, stream } = request;
        self.give_back_unpooled(env).map_err(Shortage::Failed)?;
        let Some(free) = self.bins.get_mut(bin(bytes)) else { return Ok(None) };
        let found = free.find(stream, env, |_| true)?;
        Ok(found.map(|segment| self.live.hand_out(segment)))
    }

    fn free(&mut self, key: u32, stream: StreamRef, env: &mut Environment<'_>) -> SourceResult {
        let Some(segment) = self.live.remove(key) else { return Ok(()) };
        let ticket = env.order.note_free(stream, env.source);
        match self.bins.get_mut(bin(segment.bytes)) {
            Some(free) => {
                free.push(ticket, segment);
                Ok(())
            }
            None => {
                self.unpooled.push(ticket, segment);
                self.give_back_unpooled(env).map(|_| ())
            }
        }
    }

    fn release(&mut self, target: u64, env: &mut Environment<'_>) -> SourceResult<u64> {
        let mut released = self.unpooled.release(target, env)?;
        while released < target {
            let left = target - released;
            let covering = bin(left).min(self.bins.len());
            // Releases one block of at least `left` bytes, from the smallest bin with such blocks.
            // If no block is that large, releases blocks of the largest bin that is not empty.
            let mut next = 0;
            for at in (covering..self.bins.len()).chain((0..covering).rev()) {
                let most = if at >= covering { 1 } else { left >> at << at };
                next = self.bins[at].release(most, env)?;
                if next > 0 {
                    break;
                }
            }
            if next == 0 {
                break;
            }
            released += next;
        }
        Ok(released)
    }

    fn release_at(&mut self, address: u64, env: &mut Environment<'_>) -> SourceResult<u64> {
        for free in self.bins.iter_mut().chain([&mut self.unpooled]) {
            let released = free.release_at(address, env)?;
            if released > 0 {
                return Ok(released);
            }
        }
        Ok(0)
    }

    fn forecast(&self, bytes: u64, outlook: &Outlook<'_>) -> Forecast {
        let of_size = self.bins.get(bin(bytes));
        let is_cached = of_size.is_some_and(|free| free.segments(outlook.stuck).next().is_some());
        let free = self.bins.iter().chain([&self.unpooled]);
        let spare = free.clone().flat_map(|free| free.segments(outlook.stuck));
        let take = rounded(bytes);
        let takings = vec![Taking::new(if is_cached { 0 } else { take })];
        Forecast {
            takings,
            is_cached,
            take,
            take_whole: take,
            spare: spare.collect(),
            largest_left: 0,
            stuck: free.map(|free| free.stuck(outlook.stuck)).sum(),
            driver_is_stuck: false,
        }
    }

    fn cached(&self, stream: Option<StreamRef>, order: &Order) -> Cached {
        let mut cached = Cached::default();
        for free in self.bins.iter().chain([&self.unpooled]) {
            free.count(&mut cached, stream, order);
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

/// Returns the index of the bin for `bytes`. The index exceeds [`LARGEST_BIN`] if `bytes` is too
/// large for a bin.
fn bin(bytes: u64) -> usize {
    (u64::BITS - (bytes - 1).leading_zeros()) as usize
}

/// Returns the block size for a request of `bytes`.
fn rounded(bytes: u64) -> u64 {
    if bin(bytes) > LARGEST_BIN as usize { bytes } else { Rounding::PowersOfTwo.round(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_reach_128_mib() {
        for (bytes, block) in [
            (1, 1),
            (2, 2),
            (3, 4),
            (8, 8),
            (9, 16),
            ((64 << 20) + 1, 128 << 20),
            (128 << 20, 128 << 20),
            ((128 << 20) + 1, (128 << 20) + 1),
        ] {
            assert_eq!(rounded(bytes), block, "{bytes}");
        }
    }
}
