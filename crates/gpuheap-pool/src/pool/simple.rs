//! The pool `simple` keeps whole blocks in one list, and searches it by first fit. It is the
//! counterpart of `JULIA_CUDA_MEMORY_POOL=simple` in CUDA.jl (up to 3.3), for comparisons.
//!
//! A cached block may exceed the request by at most 1 MiB, or by 4 MiB if the request is larger
//! than 32 MiB. Blocks are neither split nor merged.

use super::free_list::FreeList;
use super::slot_map::SlotMap;
use super::{Cached, Environment, Forecast, Granted, Held, Outlook, Policy, Request, Taking};
use crate::order::Order;
use crate::source::{Segment, SourceResult};
use crate::stream::StreamRef;

/// Largest request, in bytes, that may waste only [`SMALL_WASTE`] bytes. Larger requests may waste
/// [`LARGE_WASTE`] bytes.
const SMALL: u64 = 32 << 20;
const SMALL_WASTE: u64 = 1 << 20;
const LARGE_WASTE: u64 = 4 << 20;

/// The policy `simple`.
#[derive(Debug, Default)]
pub struct Simple {
    live: SlotMap<Segment>,
    free: FreeList,
}

impl Policy for Simple {
    fn allocate(&mut self, request: Request, env: &mut Environment<'_>) -> Granted {
        let segment = match self.free.find(request.stream, env, fits(request.bytes))? {
            Some(segment) => segment,
            None => env.take(request.bytes, request.stream)?,
        };
        Ok(self.live.hand_out(segment))
    }

    fn free(&mut self, key: u32, stream: StreamRef, env: &mut Environment<'_>) -> SourceResult {
        if let Some(segment) = self.live.remove(key) {
            let ticket = env.order.note_free(stream, env.source);
            self.free.push(ticket, segment);
        }
        Ok(())
    }

    fn release(&mut self, target: u64, env: &mut Environment<'_>) -> SourceResult<u64> {
        self.free.release(target, env)
    }

    fn release_at(&mut self, address: u64, env: &mut Environment<'_>) -> SourceResult<u64> {
        self.free.release_at(address, env)
    }

    fn forecast(&self, bytes: u64, outlook: &Outlook<'_>) -> Forecast {
        let spare: Vec<_> = self.free.segments(outlook.stuck).collect();
        let is_cached = spare.iter().any(|segment| fits(bytes)(segment.bytes));
        let takings = vec![Taking::new(if is_cached { 0 } else { bytes })];
        Forecast {
            takings,
            is_cached,
            take: bytes,
            take_whole: bytes,
            spare,
            largest_left: 0,
            stuck: self.free.stuck(outlook.stuck),
            driver_is_stuck: false,
        }
    }

    fn cached(&self, stream: Option<StreamRef>, order: &Order) -> Cached {
        let mut cached = Cached::default();
        self.free.count(&mut cached, stream, order);
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

/// Returns a predicate of block sizes: `true` if the size is large enough for `bytes` and not too
/// large.
fn fits(bytes: u64) -> impl Fn(u64) -> bool {
    let most = bytes.saturating_add(if bytes <= SMALL { SMALL_WASTE } else { LARGE_WASTE });
    move |block| bytes <= block && block <= most
}
