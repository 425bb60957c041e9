//! The two sources of real memory: plain allocations, and a stream-ordered pool of our own.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use gpuheap_driver::{
    CU_EVENT_DISABLE_TIMING, CU_MEM_ATTACH_GLOBAL, CU_MEMHOSTALLOC_DEVICEMAP,
    CU_MEMHOSTALLOC_PORTABLE, CUdeviceptr, CUevent, CUmemPool_attribute, CUmemPoolProps,
    CUmemoryPool, CUresult, CUstream, check,
};
use rustc_hash::FxHashMap;

use super::host::host_memory;
use super::{Fence, GRANULE, MemorySource, Segment, SourceError, Waiter, round_up};
use crate::device::Context;
use crate::heap::limits::Limits;
use crate::heap::order::StreamRef;
use crate::kind::MemoryKind;

/// What a stream-ordered pool grows by (one H200, driver 580).
const POOL_STEP: u64 = 32 << 20;

/// The driver's plain allocations of one kind of memory: `cuMemAlloc`, `cuMemAllocManaged`,
/// `cuMemHostAlloc`. Giving back waits for the device.
pub(crate) struct PlainSource {
    events: Events,
    kind: MemoryKind,
    /// How many small segments lie in each granule of 2 MiB, by its number.
    shared_granules: FxHashMap<u64, u32>,
    /// What larger segments take, which have their granules to themselves.
    large: u64,
    reserved_peak: u64,
}

/// A stream-ordered pool that belongs to this heap alone, never the process's default one: other
/// libraries take from that, and its settings are theirs too.
pub(crate) struct OrderedSource {
    events: Events,
    pool: CUmemoryPool,
    /// Whether the pool keeps what is freed.
    keeps: bool,
    /// What the driver itself holds the pool to.
    bound: Option<u64>,
}

impl PlainSource {
    pub(crate) fn new(context: Arc<Context>, kind: MemoryKind) -> PlainSource {
        PlainSource {
            events: Events::new(context),
            kind,
            shared_granules: FxHashMap::default(),
            large: 0,
            reserved_peak: 0,
        }
    }

    fn granules_now(&self) -> u64 {
        self.large + self.shared_granules.len() as u64 * GRANULE
    }

    /// Whether the driver counts a segment by granules of the device's that it shares with others.
    fn shares_granules(&self, segment: Segment) -> bool {
        self.kind == MemoryKind::Device && segment.bytes <= GRANULE
    }

    fn allocate(&mut self, bytes: usize) -> Result<CUdeviceptr, SourceError> {
        let mut address: CUdeviceptr = 0;
        match self.kind {
            MemoryKind::Device => self.events.call("cuMemAlloc_v2", |context| {
                // SAFETY: the pointer is valid for the call.
                unsafe { context.driver().cuMemAlloc_v2(&mut address, bytes) }
            })?,
            MemoryKind::Unified => self.events.call("cuMemAllocManaged", |context| {
                // SAFETY: the pointer is valid for the call.
                unsafe {
                    context.driver().cuMemAllocManaged(&mut address, bytes, CU_MEM_ATTACH_GLOBAL)
                }
            })?,
            MemoryKind::Pinned | MemoryKind::Registered => {
                let mut pointer: *mut c_void = ptr::null_mut();
                let flags = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP;
                self.events.call("cuMemHostAlloc", |context| {
                    // SAFETY: the pointer is valid for the call.
                    unsafe { context.driver().cuMemHostAlloc(&mut pointer, bytes, flags) }
                })?;
                // With unified addressing, which every 64-bit driver has, the device sees pinned
                // memory at the host's own address.
                address = pointer.expose_provenance() as CUdeviceptr;
            }
        }
        Ok(address)
    }

    /// The granules of a small segment: one, unless the driver laid it across a border.
    fn granules_of(segment: Segment) -> std::ops::RangeInclusive<u64> {
        segment.address / GRANULE..=(segment.address + segment.bytes - 1) / GRANULE
    }
}

impl OrderedSource {
    /// A pool that keeps what is freed, up to a soft limit, or nothing; drivers from 12.2 on hold
    /// it to a hard limit.
    pub(crate) fn new(
        context: Arc<Context>,
        keeps: bool,
        limits: Limits,
    ) -> Result<OrderedSource, SourceError> {
        let events = Events::new(context);
        let bound = limits.hard.map(|limit| limit / POOL_STEP * POOL_STEP);
        let mut source = OrderedSource { events, pool: CUmemoryPool::NULL, keeps, bound };
        let mut properties = CUmemPoolProps::device(source.events.context.ordinal());
        // Zero means no bound, so a limit below one step is left to our own check.
        properties.max_size = bound.unwrap_or(0) as usize;
        let mut pool = CUmemoryPool::NULL;
        source.events.call("cuMemPoolCreate", |context| {
            // SAFETY: both pointers are valid for the call.
            unsafe { context.driver().cuMemPoolCreate(&mut pool, &properties) }
        })?;
        source.pool = pool;
        source.set_threshold(limits)?;
        Ok(source)
    }

    fn set_threshold(&mut self, limits: Limits) -> Result<(), SourceError> {
        let keep = if self.keeps { limits.soft.unwrap_or(u64::MAX) } else { 0 };
        self.set(CUmemPool_attribute::RELEASE_THRESHOLD, keep)
    }

    fn get(&mut self, attribute: CUmemPool_attribute) -> Result<u64, SourceError> {
        let (pool, mut value) = (self.pool, 0_u64);
        self.events.call("cuMemPoolGetAttribute", |context| {
            // SAFETY: the attributes that are read here are 64 bits wide.
            unsafe {
                context.driver().cuMemPoolGetAttribute(pool, attribute, (&raw mut value).cast())
            }
        })?;
        Ok(value)
    }

    fn set(&mut self, attribute: CUmemPool_attribute, mut value: u64) -> Result<(), SourceError> {
        let pool = self.pool;
        self.events.call("cuMemPoolSetAttribute", |context| {
            // SAFETY: the attributes that are set here are 64 bits wide.
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
        // A pool that cannot be destroyed any more went with its context.
        let _ = self.events.call("cuMemPoolDestroy", |context| {
            // SAFETY: the pool is this source's own and is not used again.
            unsafe { context.driver().cuMemPoolDestroy(pool) }
        });
    }
}

/// The fences of a source: events that are made once and used again.
struct Events {
    context: Arc<Context>,
    events: Vec<CUevent>,
    unused: Vec<u32>,
    calls: u64,
}

impl Events {
    fn new(context: Arc<Context>) -> Events {
        Events { context, events: Vec::new(), unused: Vec::new(), calls: 0 }
    }

    /// Makes one driver call with the heap's context current.
    fn call(
        &mut self,
        function: &'static str,
        call: impl FnOnce(&Context) -> CUresult,
    ) -> Result<(), SourceError> {
        self.calls += 1;
        let _current = self.context.enter()?;
        Ok(check(function, call(&self.context))?)
    }

    fn record(&mut self, stream: StreamRef) -> Result<Fence, SourceError> {
        let fence = match self.unused.pop() {
            Some(unused) => unused,
            None => {
                let mut event = CUevent::NULL;
                self.call("cuEventCreate", |context| {
                    // SAFETY: the pointer is valid for the call.
                    unsafe { context.driver().cuEventCreate(&mut event, CU_EVENT_DISABLE_TIMING) }
                })?;
                self.events.push(event);
                self.events.len() as u32 - 1
            }
        };
        let event = self.events[fence as usize];
        let recorded = self.call("cuEventRecord", |context| {
            // SAFETY: the event is ours; the stream is alive, which its user promises.
            unsafe { context.driver().cuEventRecord(event, stream.raw()) }
        });
        if recorded.is_err() {
            self.unused.push(fence);
        }
        recorded.map(|()| Fence(fence))
    }

    fn is_reached(&mut self, fence: Fence) -> Result<bool, SourceError> {
        let event = self.events[fence.0 as usize];
        self.calls += 1;
        let _current = self.context.enter()?;
        // SAFETY: the event is ours.
        match unsafe { self.context.driver().cuEventQuery(event) } {
            CUresult::ERROR_NOT_READY => Ok(false),
            code => Ok(check("cuEventQuery", code).map(|()| true)?),
        }
    }

    fn order_after(&mut self, stream: StreamRef, fence: Fence) -> Result<(), SourceError> {
        let event = self.events[fence.0 as usize];
        self.call("cuStreamWaitEvent", |context| {
            // SAFETY: the event is ours; the stream is alive, which its user promises.
            unsafe { context.driver().cuStreamWaitEvent(stream.raw(), event, 0) }
        })
    }

    fn waiter(&mut self, fence: Fence) -> Waiter {
        self.calls += 1;
        let (context, event) = (self.context.clone(), self.events[fence.0 as usize]);
        Box::new(move || {
            let _current = context.enter()?;
            // SAFETY: events are destroyed with the heap only, which outlives its waits.
            Ok(check("cuEventSynchronize", unsafe { context.driver().cuEventSynchronize(event) })?)
        })
    }

    fn zero(
        &mut self,
        address: u64,
        bytes: u64,
        stream: Option<StreamRef>,
    ) -> Result<(), SourceError> {
        let bytes = usize::try_from(bytes).map_err(|_| SourceError::OutOfMemory)?;
        let raw = stream.map_or(CUstream::LEGACY, StreamRef::raw);
        let context = self.context.clone();
        let _working = context.gate.work()?;
        self.call("cuMemsetD8Async", |context| {
            // SAFETY: the block is the heap's own and has these bytes; the stream is alive.
            unsafe { context.driver().cuMemsetD8Async(address, 0, bytes, raw) }
        })?;
        if stream.is_none() {
            self.calls += 1;
            self.context.synchronize()?;
        }
        Ok(())
    }

    fn device_memory(&mut self) -> Result<(u64, u64), SourceError> {
        self.calls += 1;
        Ok(self.context.memory()?)
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        for event in std::mem::take(&mut self.events) {
            // An event that cannot be destroyed any more went with its context.
            let _ = self.call("cuEventDestroy_v2", |context| {
                // SAFETY: the event is ours and is not used again.
                unsafe { context.driver().cuEventDestroy_v2(event) }
            });
        }
    }
}

macro_rules! order_by_events {
    () => {
        fn zero(
            &mut self,
            address: u64,
            bytes: u64,
            stream: Option<StreamRef>,
        ) -> Result<(), SourceError> {
            self.events.zero(address, bytes, stream)
        }

        fn record(&mut self, stream: StreamRef) -> Result<Fence, SourceError> {
            self.events.record(stream)
        }

        fn is_reached(&mut self, fence: Fence) -> Result<bool, SourceError> {
            self.events.is_reached(fence)
        }

        fn order_after(&mut self, stream: StreamRef, fence: Fence) -> Result<(), SourceError> {
            self.events.order_after(stream, fence)
        }

        fn waiter(&mut self, fence: Fence) -> Waiter {
            self.events.waiter(fence)
        }

        fn forget(&mut self, fence: Fence) {
            self.events.unused.push(fence.0);
        }

        fn calls(&self) -> u64 {
            self.events.calls
        }
    };
}

impl MemorySource for PlainSource {
    fn take(&mut self, bytes: u64, _stream: StreamRef) -> Result<Segment, SourceError> {
        let bytes_asked = usize::try_from(bytes).map_err(|_| SourceError::OutOfMemory)?;
        let segment = Segment { address: self.allocate(bytes_asked)?, bytes };
        if !self.shares_granules(segment) {
            self.large += self.growth(bytes);
        } else {
            for granule in PlainSource::granules_of(segment) {
                *self.shared_granules.entry(granule).or_insert(0) += 1;
            }
        }
        self.reserved_peak = self.reserved_peak.max(self.granules_now());
        Ok(segment)
    }

    fn give_back(&mut self, segment: Segment) -> Result<(), SourceError> {
        let is_host = matches!(self.kind, MemoryKind::Pinned | MemoryKind::Registered);
        let function = if is_host { "cuMemFreeHost" } else { "cuMemFree_v2" };
        self.events.call(function, |context| {
            let driver = context.driver();
            // SAFETY: the segment was taken by this source and all its uses are over.
            unsafe {
                if is_host {
                    driver.cuMemFreeHost(ptr::with_exposed_provenance_mut(segment.address as usize))
                } else {
                    driver.cuMemFree_v2(segment.address)
                }
            }
        })?;
        if !self.shares_granules(segment) {
            self.large -= self.growth(segment.bytes);
            return Ok(());
        }
        for granule in PlainSource::granules_of(segment) {
            if let Some(count) = self.shared_granules.get_mut(&granule) {
                *count -= 1;
                if *count == 0 {
                    self.shared_granules.remove(&granule);
                }
            }
        }
        Ok(())
    }

    fn give_back_on(&mut self, segment: Segment, _stream: StreamRef) -> Result<(), SourceError> {
        self.give_back(segment)
    }

    fn is_stream_ordered(&self) -> bool {
        false
    }

    fn reserved(&mut self) -> Result<u64, SourceError> {
        Ok(self.granules_now())
    }

    fn reserved_peak(&mut self) -> Result<u64, SourceError> {
        Ok(self.reserved_peak)
    }

    fn growth(&self, bytes: u64) -> u64 {
        if self.kind == MemoryKind::Device { round_up(bytes, GRANULE) } else { bytes }
    }

    fn regained(&mut self, segments: &[Segment]) -> Result<u64, SourceError> {
        let (mut regained, mut left) = (0, FxHashMap::default());
        for &segment in segments {
            if !self.shares_granules(segment) {
                regained += self.growth(segment.bytes);
                continue;
            }
            for granule in PlainSource::granules_of(segment) {
                let held = self.shared_granules.get(&granule).copied().unwrap_or(0);
                let left: &mut u32 = left.entry(granule).or_insert(held);
                *left = left.saturating_sub(1);
            }
        }
        let emptied = left.values().filter(|left| **left == 0).count();
        Ok(regained + emptied as u64 * GRANULE)
    }

    fn trim(&mut self) -> Result<u64, SourceError> {
        Ok(0)
    }

    fn limit(&mut self, _limits: Limits) -> Result<bool, SourceError> {
        Ok(true)
    }

    fn capacity(&self) -> u64 {
        match self.kind {
            MemoryKind::Device => self.events.context.total_memory(),
            // It may be larger than the device; what is not there is found out by touching it.
            MemoryKind::Unified => u64::MAX,
            MemoryKind::Pinned | MemoryKind::Registered => host_memory().1,
        }
    }

    fn device_memory(&mut self) -> Result<(u64, u64), SourceError> {
        match self.kind {
            MemoryKind::Device | MemoryKind::Unified => self.events.device_memory(),
            MemoryKind::Pinned | MemoryKind::Registered => Ok(host_memory()),
        }
    }

    order_by_events!();
}

impl MemorySource for OrderedSource {
    fn take(&mut self, bytes: u64, stream: StreamRef) -> Result<Segment, SourceError> {
        let bytes_asked = usize::try_from(bytes).map_err(|_| SourceError::OutOfMemory)?;
        let (pool, mut address) = (self.pool, 0);
        self.events.call("cuMemAllocFromPoolAsync", |context| {
            // SAFETY: the pointer is valid for the call; the stream is alive, which its user promises.
            unsafe {
                context.driver().cuMemAllocFromPoolAsync(
                    &mut address,
                    bytes_asked,
                    pool,
                    stream.raw(),
                )
            }
        })?;
        Ok(Segment { address, bytes })
    }

    fn give_back(&mut self, segment: Segment) -> Result<(), SourceError> {
        self.events.call("cuMemFree_v2", |context| {
            // SAFETY: the segment was taken by this source and all its uses are over.
            unsafe { context.driver().cuMemFree_v2(segment.address) }
        })
    }

    fn give_back_on(&mut self, segment: Segment, stream: StreamRef) -> Result<(), SourceError> {
        self.events.call("cuMemFreeAsync", |context| {
            // SAFETY: the segment was taken by this source; its last use is on this stream.
            unsafe { context.driver().cuMemFreeAsync(segment.address, stream.raw()) }
        })
    }

    fn is_stream_ordered(&self) -> bool {
        true
    }

    fn reserved(&mut self) -> Result<u64, SourceError> {
        self.get(CUmemPool_attribute::RESERVED_MEM_CURRENT)
    }

    fn reserved_peak(&mut self) -> Result<u64, SourceError> {
        self.get(CUmemPool_attribute::RESERVED_MEM_HIGH)
    }

    fn growth(&self, bytes: u64) -> u64 {
        round_up(bytes, POOL_STEP)
    }

    /// As if the pool could give back all that is not in use; what shares a step with something in
    /// use stays.
    fn regained(&mut self, segments: &[Segment]) -> Result<u64, SourceError> {
        let used = self.get(CUmemPool_attribute::USED_MEM_CURRENT)?;
        let given: u64 = segments.iter().map(|segment| segment.bytes).sum();
        Ok(self.reserved()?.saturating_sub(used) + given)
    }

    fn trim(&mut self) -> Result<u64, SourceError> {
        let before = self.reserved()?;
        let pool = self.pool;
        self.events.call("cuMemPoolTrimTo", |context| {
            // SAFETY: the pool is this source's own.
            unsafe { context.driver().cuMemPoolTrimTo(pool, 0) }
        })?;
        Ok(before.saturating_sub(self.reserved()?))
    }

    fn limit(&mut self, limits: Limits) -> Result<bool, SourceError> {
        let within = |bound| limits.hard.is_some_and(|limit| limit < bound + POOL_STEP);
        if !self.bound.is_none_or(within) {
            return Ok(false);
        }
        self.set_threshold(limits)?;
        Ok(true)
    }

    fn capacity(&self) -> u64 {
        self.events.context.total_memory()
    }

    fn device_memory(&mut self) -> Result<(u64, u64), SourceError> {
        self.events.device_memory()
    }

    order_by_events!();
}
