//! Streams, and host callbacks on them.

use super::prelude::*;
use crate::api::context::PRIORITIES;
use crate::emulator::null_is_per_thread;
use crate::state::context::this_thread;
use crate::state::stream::{Stream, StreamKind, Work};
use crate::state::user_object::{Callback, HostFunction};

impl Call<'_> {
    pub(crate) fn cuStreamCreate(&mut self, (stream, flags): args::cuStreamCreate) -> Outcome {
        self.cuStreamCreateWithPriority((stream, flags, 0))
    }

    pub(crate) fn cuStreamCreateWithPriority(
        &mut self,
        (stream, flags, priority): args::cuStreamCreateWithPriority,
    ) -> Outcome {
        let context = self.current()?;
        stream.require()?;
        fail_if(flags & !CU_STREAM_NON_BLOCKING != 0, INVALID_VALUE)?;
        let id = self.state.fresh_id();
        let priority = priority.clamp(PRIORITIES.1, PRIORITIES.0);
        let made = Stream::new(context, StreamKind::Created, flags, priority, id);
        let handle = self.state.streams.insert(made);
        stream.write(CUstream(handle))
    }

    pub(crate) fn cuStreamDestroy_v2(&mut self, stream: CUstream) -> Outcome {
        fail_if(self.is_default(stream), CUresult::ERROR_INVALID_HANDLE)?;
        let index = self.stream(stream)?;
        self.drop_captures(|capture| capture.has(index));
        self.stream_gone(index);
        let Some(found) = self.state.streams.at_mut(index) else { return Ok(()) };
        if found.queue.is_empty() {
            self.state.streams.remove_at(index);
        } else {
            found.destroyed = true;
        }
        Ok(())
    }

    pub(crate) fn cuStreamSynchronize(&mut self, stream: CUstream) -> Outcome {
        let index = self.stream(stream)?;
        self.refuse_while_recording(index)?;
        let tail = self.state.last_work(index);
        self.complete_all(tail);
        self.begin_wait(index);
        self.host_waits_for_stream(index);
        let (context, device) = (self.context_of(index), self.device_of_stream(index));
        self.release_idle(device);
        self.alive(context)
    }

    pub(crate) fn cuStreamQuery(&mut self, stream: CUstream) -> Outcome {
        let index = self.stream(stream)?;
        self.refuse_while_recording(index)?;
        for op in self.state.last_work(index) {
            self.query(Some(op))?;
        }
        self.begin_wait(index);
        self.host_waits_for_stream(index);
        Ok(())
    }

    pub(crate) fn cuStreamWaitEvent(
        &mut self,
        (stream, event, flags): args::cuStreamWaitEvent,
    ) -> Outcome {
        let index = self.stream(stream)?;
        let found = self.event(event)?;
        // CU_EVENT_WAIT_EXTERNAL is accepted and matters only in graphs.
        fail_if(flags > 1, INVALID_VALUE)?;
        let captured = found.captured;
        if captured.is_some() || self.state.captures.is_recording(index) && found.recorded.is_some()
        {
            return self.wait_recorded(index, captured);
        }
        let Some(record) = &found.recorded else { return Ok(()) };
        let op = record.op;
        self.begin_wait(index);
        self.stream_waits_for(index, event);
        // The work belongs to this stream, or to a destroyed stream that had this index and has no
        // work left.
        if op.stream == index {
            return Ok(());
        }
        if let Some(found) = self.state.streams.at_mut(index) {
            found.note_wait(op);
        }
        if !self.state.is_done(op) {
            self.enqueue(index, Work::Nothing, &[op]);
        }
        Ok(())
    }

    pub(crate) fn cuStreamAddCallback(
        &mut self,
        (stream, callback, data, flags): args::cuStreamAddCallback,
    ) -> Outcome {
        let index = self.stream(stream)?;
        fail_if(flags != 0 || callback.is_none(), INVALID_VALUE)?;
        self.enqueue_callback(index, HostFunction::WithStatus(callback, stream.0), data);
        Ok(())
    }

    pub(crate) fn cuLaunchHostFunc(
        &mut self,
        (stream, function, data): args::cuLaunchHostFunc,
    ) -> Outcome {
        let index = self.stream(stream)?;
        fail_if(function.is_none(), INVALID_VALUE)?;
        self.enqueue_callback(index, HostFunction::Plain(function), data);
        Ok(())
    }

    pub(crate) fn cuStreamGetId(&mut self, (stream, id): args::cuStreamGetId) -> Outcome {
        let index = self.stream(stream)?;
        // On a real driver, `cuStreamGetId` invalidates a capture, but `cuStreamGetCtx` does not
        // (measured on an H200, driver 580).
        self.refuse_while_recording(index)?;
        let found = self.stream_state(stream)?.id;
        id.write(found)
    }

    pub(crate) fn cuStreamGetFlags(&mut self, (stream, flags): args::cuStreamGetFlags) -> Outcome {
        let found = self.stream_state(stream)?.flags;
        flags.write(found)
    }

    pub(crate) fn cuStreamGetPriority(
        &mut self,
        (stream, priority): args::cuStreamGetPriority,
    ) -> Outcome {
        let found = self.stream_state(stream)?.priority;
        priority.write(found)
    }

    pub(crate) fn cuStreamGetCtx(&mut self, (stream, context): args::cuStreamGetCtx) -> Outcome {
        let index = self.stream(stream)?;
        // Measured on an H200, driver 580.159.
        let is_invalidated = self.state.captures.find(index).is_some_and(|found| found.invalidated);
        fail_if(is_invalidated, CUresult::ERROR_STREAM_CAPTURE_INVALIDATED)?;
        let handle = self.state.contexts.handle(self.context_of(index));
        context.write(CUcontext(handle))
    }

    /// Returns a stream's context. Returns null for the green context, because the emulator has no
    /// green contexts.
    pub(crate) fn cuStreamGetCtx_v2(
        &mut self,
        (stream, context, green): args::cuStreamGetCtx_v2,
    ) -> Outcome {
        green.require()?;
        self.cuStreamGetCtx((stream, context))?;
        green.write(CUgreenCtx::NULL)
    }

    pub(crate) fn cuStreamGetDevice(
        &mut self,
        (stream, device): args::cuStreamGetDevice,
    ) -> Outcome {
        let index = self.stream(stream)?;
        device.write(self.device_of_stream(index) as CUdevice)
    }

    /// Returns the index of a stream. A default stream belongs to the current context. Any other
    /// stream determines its context, so a current context is not needed (measured).
    pub(crate) fn stream(&mut self, stream: CUstream) -> Outcome<u32> {
        if self.is_default(stream) {
            return self.default_stream(stream);
        }
        self.initialised()?;
        let index = self.state.streams.index(stream.0);
        let found = index.and_then(|index| Some((index, self.state.streams.at(index)?)));
        match found {
            Some((index, found)) if !found.destroyed => {
                self.alive(found.context)?;
                Ok(index)
            }
            _ => Err(self.stale_handle()),
        }
    }

    pub(crate) fn context_of(&self, stream: u32) -> u32 {
        self.state.streams.at(stream).map_or(0, |stream| stream.context)
    }

    pub(crate) fn device_of_stream(&self, stream: u32) -> usize {
        self.device_of(self.context_of(stream))
    }

    fn is_default(&self, stream: CUstream) -> bool {
        stream.is_null() || stream == CUstream::LEGACY || stream == CUstream::PER_THREAD
    }

    fn stream_state(&mut self, stream: CUstream) -> Outcome<&Stream> {
        let index = self.stream(stream)?;
        self.state.streams.at(index).ok_or(CUresult::ERROR_INVALID_HANDLE)
    }

    fn default_stream(&mut self, stream: CUstream) -> Outcome<u32> {
        let context = self.current()?;
        let per_thread = stream.is_null() && null_is_per_thread();
        if stream == CUstream::PER_THREAD || per_thread {
            return Ok(self.per_thread_stream(context));
        }
        let found = self.state.contexts.at(context).ok_or(CUresult::ERROR_INVALID_CONTEXT)?;
        let legacy = found.legacy;
        if !self.state.captures.active.is_empty() {
            self.refuse_implicit(legacy)?;
        }
        Ok(legacy)
    }

    fn per_thread_stream(&mut self, context: u32) -> u32 {
        let thread = this_thread();
        let known =
            self.state.contexts.at(context).and_then(|c| c.per_thread.get(&thread).copied());
        if let Some(known) = known {
            return known;
        }
        let id = self.state.fresh_id();
        let made = Stream::new(context, StreamKind::PerThread, 0, 0, id);
        let state = &mut *self.state;
        let handle = state.streams.insert(made);
        let index = state.streams.index(handle).unwrap_or_default();
        if let Some(context) = state.contexts.at_mut(context) {
            context.per_thread.insert(thread, index);
        }
        index
    }

    fn enqueue_callback(&mut self, stream: u32, function: HostFunction, data: Out<c_void>) {
        self.begin(stream);
        let clock = self.clock_of(stream);
        let callback = Callback { function, data: data.address(), clock };
        self.enqueue(stream, Work::Callback(callback), &[]);
    }
}
