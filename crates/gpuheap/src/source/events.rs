//! Implements fences by driver events. The context of the events is current during each call.

use std::sync::Arc;

use gpuheap_driver::{CU_EVENT_DISABLE_TIMING, CUevent, CUresult, CUstream};
use gpuheap_pool::{Fence, SourceError, SourceResult, StreamRef, Waiter};

use super::{check, raw};
use crate::device::{Aside, Context};

/// Fences of a source. They are driver events, created once and reused.
pub(super) struct Events {
    pub(super) context: Arc<Context>,
    events: Vec<CUevent>,
    pub(super) unused: Vec<u32>,
    pub(super) calls: u64,
    /// `true` while calls are grouped.
    holds: bool,
    inside: Option<Aside<Arc<Context>>>,
}

impl Events {
    pub(super) fn new(context: Arc<Context>) -> Events {
        let (events, unused) = (Vec::new(), Vec::new());
        Events { context, events, unused, calls: 0, holds: false, inside: None }
    }

    /// Groups the following calls, so that the context is entered once. Call
    /// [`end_calls`](Events::end_calls) on this thread before any code of the program runs.
    pub(super) fn begin_calls(&mut self) {
        self.holds = true;
    }

    pub(super) fn end_calls(&mut self) {
        self.holds = false;
        self.inside = None;
    }

    /// Runs `work` with the heap's context current. Entering and leaving the context take as long
    /// as one driver call of `work`: together they are five calls. Grouped calls share this cost.
    fn inside<R>(&mut self, work: impl FnOnce(&Context) -> SourceResult<R>) -> SourceResult<R> {
        if !self.holds {
            let _current = self.context.enter_aside()?;
            return work(&self.context);
        }
        if self.inside.is_none() {
            self.inside = Some(self.context.stay_aside()?);
        }
        work(&self.context)
    }

    /// Makes one driver call with the heap's context current.
    pub(super) fn call(
        &mut self,
        function: &'static str,
        call: impl FnOnce(&Context) -> CUresult,
    ) -> SourceResult {
        self.calls += 1;
        self.inside(|context| check(function, call(context)))
    }

    /// Makes one driver call with the heap's context current. If the stream is capturing, refuses
    /// the call, because it would break the capture.
    fn call_on(
        &mut self,
        stream: StreamRef,
        function: &'static str,
        call: impl FnOnce(&Context) -> CUresult,
    ) -> SourceResult {
        self.calls += 2;
        self.inside(|context| {
            if context.is_capturing_inside(raw(stream))? {
                return Err(SourceError::Capturing);
            }
            check(function, call(context))
        })
    }

    /// Records an event. Refuses a capturing stream, because the event would belong to the stream's
    /// graph and would never be reached.
    pub(super) fn record(&mut self, stream: StreamRef) -> SourceResult<Fence> {
        let fence = match self.unused.pop() {
            Some(unused) => unused,
            None => {
                let mut event = CUevent::NULL;
                self.call("cuEventCreate", |context| {
                    // SAFETY: the driver writes the new event to `event`, which outlives the
                    // closure.
                    unsafe { context.driver().cuEventCreate(&mut event, CU_EVENT_DISABLE_TIMING) }
                })?;
                self.events.push(event);
                self.events.len() as u32 - 1
            }
        };
        let recorded = self.record_on(fence, stream);
        if recorded.is_err() {
            self.unused.push(fence);
        }
        recorded.map(|()| Fence(fence))
    }

    /// Records an event. The event may have been recorded before. A wait that is already enqueued
    /// still waits for the earlier record.
    pub(super) fn record_on(&mut self, fence: u32, stream: StreamRef) -> SourceResult {
        let event = self.events[fence as usize];
        self.call_on(stream, "cuEventRecord", |context| {
            // SAFETY: this source owns the event; the caller keeps the stream alive.
            unsafe { context.driver().cuEventRecord(event, raw(stream)) }
        })
    }

    pub(super) fn is_capturing(&mut self, stream: StreamRef) -> SourceResult<bool> {
        self.calls += 1;
        Ok(self.context.is_capturing(raw(stream))?)
    }

    pub(super) fn refuse_capturing(&mut self, stream: StreamRef) -> SourceResult {
        if self.is_capturing(stream)? { Err(SourceError::Capturing) } else { Ok(()) }
    }

    pub(super) fn is_fence_reached(&mut self, fence: Fence) -> SourceResult<bool> {
        let event = self.events[fence.0 as usize];
        self.calls += 1;
        // SAFETY: this source owns the event.
        self.inside(|context| match unsafe { context.driver().cuEventQuery(event) } {
            CUresult::ERROR_NOT_READY => Ok(false),
            code => check("cuEventQuery", code).map(|()| true),
        })
    }

    /// Makes a stream wait for a fence. Refuses a capturing stream: the wait breaks the capture.
    pub(super) fn order_after(&mut self, stream: StreamRef, fence: Fence) -> SourceResult {
        let event = self.events[fence.0 as usize];
        self.call_on(stream, "cuStreamWaitEvent", |context| {
            // SAFETY: this source owns the event; the caller keeps the stream alive.
            unsafe { context.driver().cuStreamWaitEvent(raw(stream), event, 0) }
        })
    }

    pub(super) fn waiter(&mut self, fence: Fence) -> Waiter {
        self.calls += 1;
        let (context, event) = (self.context.clone(), self.events[fence.0 as usize]);
        Box::new(move || {
            let _current = context.enter_aside()?;
            // SAFETY: the heap owns `event`, and outlives its waits.
            check("cuEventSynchronize", unsafe { context.driver().cuEventSynchronize(event) })
        })
    }

    pub(super) fn zero(
        &mut self,
        address: u64,
        bytes: u64,
        stream: Option<StreamRef>,
    ) -> SourceResult {
        let bytes = usize::try_from(bytes).map_err(|_| SourceError::OutOfMemory)?;
        let raw = stream.map_or(CUstream::LEGACY, raw);
        let context = self.context.clone();
        let _working = context.gate.work()?;
        self.call("cuMemsetD8Async", |context| {
            // SAFETY: the heap owns a block of `bytes` bytes at `address`. It keeps `stream` alive.
            unsafe { context.driver().cuMemsetD8Async(address, 0, bytes, raw) }
        })?;
        if stream.is_none() {
            self.calls += 1;
            self.context.synchronize()?;
        }
        Ok(())
    }

    pub(super) fn device_memory(&mut self) -> SourceResult<(u64, u64)> {
        self.calls += 1;
        Ok(self.context.memory()?)
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        for event in std::mem::take(&mut self.events) {
            // A failure means that the event ended with its context.
            let _ = self.call("cuEventDestroy_v2", |context| {
                // SAFETY: this source owns the event and does not use it again.
                unsafe { context.driver().cuEventDestroy_v2(event) }
            });
        }
    }
}

macro_rules! order_by_events {
    () => {
        fn zero(&mut self, address: u64, bytes: u64, stream: Option<StreamRef>) -> SourceResult {
            self.events.zero(address, bytes, stream)
        }

        fn is_capturing(&mut self, stream: StreamRef) -> SourceResult<bool> {
            self.events.is_capturing(stream)
        }

        fn record(&mut self, stream: StreamRef) -> SourceResult<Fence> {
            self.events.record(stream)
        }

        fn record_again(&mut self, fence: Fence, stream: StreamRef) -> SourceResult {
            self.events.record_on(fence.0, stream)
        }

        fn is_fence_reached(&mut self, fence: Fence) -> SourceResult<bool> {
            self.events.is_fence_reached(fence)
        }

        fn order_after(&mut self, stream: StreamRef, fence: Fence) -> SourceResult {
            self.events.order_after(stream, fence)
        }

        fn waiter(&mut self, fence: Fence) -> Waiter {
            self.events.waiter(fence)
        }

        fn forget(&mut self, fence: Fence) {
            self.events.unused.push(fence.0);
        }

        fn begin_calls(&mut self) {
            self.events.begin_calls();
        }

        fn end_calls(&mut self) {
            self.events.end_calls();
        }
    };
}

pub(super) use order_by_events;
