//! A stream-ordered pool of one heap.

use std::sync::Arc;

use gpuheap_driver::{CUmemPool_attribute, CUmemPoolProps, CUmemoryPool};
use gpuheap_pool::{
    Fence, Limits, MemorySource, Segment, SourceError, SourceResult, StreamRef, Waiter, round_up,
};

use super::events::{Events, order_by_events};
use super::raw;
use crate::device::Context;

/// Growth step, in bytes, of a stream-ordered pool (one H200, driver 580).
pub(crate) const POOL_STEP: u64 = 32 << 20;

/// Largest limit, in bytes, that is passed to the driver. The heap alone enforces a larger limit.
/// Driver 580 accepts 2^40 on an H200 and refuses 2^50 as `OUT_OF_MEMORY`.
const MOST_PASSED: u64 = 1 << 40;

/// A stream-ordered pool of this heap alone. It is never the process's default pool, because other
/// libraries allocate from the default pool and change its settings.
pub(crate) struct OrderedSource {
    events: Events,
    pool: CUmemoryPool,
    /// Freed bytes that the pool keeps, unless a soft limit is lower.
    threshold: u64,
    /// Limit of the pool that the driver enforces, in bytes.
    bound: Option<u64>,
}

impl OrderedSource {
    /// Makes a pool that keeps freed memory, up to the lower of `threshold` and the soft limit.
    /// Drivers from 12.2 on enforce the heap's hard limit on the pool.
    pub(crate) fn new(
        context: Arc<Context>,
        threshold: u64,
        limits: Limits,
    ) -> SourceResult<OrderedSource> {
        let events = Events::new(context);
        let bound = limits.hard.map(|limit| limit / POOL_STEP * POOL_STEP);
        let mut source = OrderedSource { events, pool: CUmemoryPool::NULL, threshold, bound };
        let mut properties = CUmemPoolProps::device(source.events.context.ordinal());
        // `bound` is a whole number of growth steps, so it is zero for a limit below one step. The
        // driver reads zero as no limit, and the heap alone then enforces the limit.
        properties.max_size = bound.filter(|bound| *bound <= MOST_PASSED).unwrap_or(0) as usize;
        let mut pool = CUmemoryPool::NULL;
        source.events.call("cuMemPoolCreate", |context| {
            // SAFETY: `pool` receives the handle, and `properties` is only read; both outlive the
            // closure.
            unsafe { context.driver().cuMemPoolCreate(&mut pool, &properties) }
        })?;
        source.pool = pool;
        source.set_threshold(limits)?;
        Ok(source)
    }

    fn set_threshold(&mut self, limits: Limits) -> SourceResult {
        let keep = self.threshold.min(limits.soft.unwrap_or(u64::MAX));
        self.set(CUmemPool_attribute::RELEASE_THRESHOLD, keep)
    }

    fn get(&mut self, attribute: CUmemPool_attribute) -> SourceResult<u64> {
        let (pool, mut value) = (self.pool, 0_u64);
        self.events.call("cuMemPoolGetAttribute", |context| {
            // SAFETY: `value` outlives the call, and the attributes read here have 64 bits.
            unsafe {
                context.driver().cuMemPoolGetAttribute(pool, attribute, (&raw mut value).cast())
            }
        })?;
        Ok(value)
    }

    fn set(&mut self, attribute: CUmemPool_attribute, mut value: u64) -> SourceResult {
        let pool = self.pool;
        self.events.call("cuMemPoolSetAttribute", |context| {
            // SAFETY: `value` outlives the call, and the attributes set here have 64 bits.
            unsafe {
                context.driver().cuMemPoolSetAttribute(pool, attribute, (&raw mut value).cast())
            }
        })
    }
}

impl Drop for OrderedSource {
    fn drop(&mut self) {
        let pool = self.pool;
        if pool.is_null() {
            return;
        }
        // A failure means that the pool ended with its context.
        let _ = self.events.call("cuMemPoolDestroy", |context| {
            // SAFETY: this source made the pool, and no call uses it after the drop.
            unsafe { context.driver().cuMemPoolDestroy(pool) }
        });
    }
}

impl MemorySource for OrderedSource {
    fn take(&mut self, bytes: u64, stream: StreamRef) -> SourceResult<Segment> {
        let size = usize::try_from(bytes).map_err(|_| SourceError::OutOfMemory)?;
        // During a capture the memory would belong to the graph. The graph's launches, and not the
        // block, would decide how long the memory lives.
        self.events.refuse_capturing(stream)?;
        let (pool, mut address) = (self.pool, 0);
        self.events.call("cuMemAllocFromPoolAsync", |context| {
            // SAFETY: `address` outlives the closure, `pool` is this source's, and the heap keeps
            // `stream` alive.
            unsafe {
                context.driver().cuMemAllocFromPoolAsync(&mut address, size, pool, raw(stream))
            }
        })?;
        Ok(Segment { address, bytes })
    }

    fn give_back(&mut self, segment: Segment) -> SourceResult {
        self.events.call("cuMemFree_v2", |context| {
            // SAFETY: `take` allocated the segment, and the policy returns it only after its last
            // use completed.
            unsafe { context.driver().cuMemFree_v2(segment.address) }
        })
    }

    fn give_back_on(&mut self, segment: Segment, stream: StreamRef) -> SourceResult {
        // Memory allocated outside of a graph cannot be freed in that graph.
        self.events.refuse_capturing(stream)?;
        self.events.call("cuMemFreeAsync", |context| {
            // SAFETY: `take` allocated the segment; its last use is earlier in this stream's order.
            unsafe { context.driver().cuMemFreeAsync(segment.address, raw(stream)) }
        })
    }

    fn is_stream_ordered(&self) -> bool {
        true
    }

    fn reserved(&mut self) -> SourceResult<u64> {
        self.get(CUmemPool_attribute::RESERVED_MEM_CURRENT)
    }

    fn reserved_peak(&mut self) -> SourceResult<u64> {
        self.get(CUmemPool_attribute::RESERVED_MEM_HIGH)
    }

    fn growth(&self, bytes: u64) -> u64 {
        round_up(bytes, POOL_STEP)
    }

    /// Returns an upper bound of the bytes that the driver takes back. The driver takes only whole
    /// growth steps of the pool, so unused memory stays if its step also contains memory in use.
    fn regained(&mut self, segments: &[Segment]) -> SourceResult<u64> {
        let used = self.get(CUmemPool_attribute::USED_MEM_CURRENT)?;
        let given: u64 = segments.iter().map(|segment| segment.bytes).sum();
        Ok(self.reserved()?.saturating_sub(used) + given)
    }

    /// Returns the bytes of [`regained`](MemorySource::regained) that may stay in the pool. If
    /// other memory of the pool is in use, all of them may stay: the driver does not report which
    /// growth steps contain that memory.
    fn may_stay(&mut self, segments: &[Segment]) -> SourceResult<u64> {
        let regained = self.regained(segments)?;
        Ok(if regained < self.reserved()? { regained } else { 0 })
    }

    fn trim(&mut self) -> SourceResult<u64> {
        let before = self.reserved()?;
        let pool = self.pool;
        self.events.call("cuMemPoolTrimTo", |context| {
            // SAFETY: this source made the pool, and destroys it only in its drop.
            unsafe { context.driver().cuMemPoolTrimTo(pool, 0) }
        })?;
        Ok(before.saturating_sub(self.reserved()?))
    }

    fn limit(&mut self, limits: Limits) -> SourceResult<bool> {
        let is_within = match limits.hard {
            Some(hard) => self.allows(hard),
            None => self.bound.is_none(),
        };
        if !is_within {
            return Ok(false);
        }
        self.set_threshold(limits)?;
        Ok(true)
    }

    fn allows(&self, hard: u64) -> bool {
        self.bound.is_none_or(|bound| hard / POOL_STEP <= bound / POOL_STEP)
    }

    fn capacity(&self) -> u64 {
        self.events.context.total_memory()
    }

    fn device_memory(&mut self) -> SourceResult<(u64, u64)> {
        self.events.device_memory()
    }

    fn calls(&self) -> u64 {
        self.events.calls
    }

    order_by_events!();
}
