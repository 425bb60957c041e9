//! Events.

use super::prelude::*;
use crate::state::capture::{Event, Record};
use crate::state::stream::{OpRef, Work};

/// Flags of events: blocking waits, no timing, use by other processes.
const EVENT_FLAGS: c_uint = 7;
/// `CU_EVENT_INTERPROCESS`. It is refused, because the emulator does not share events.
const INTERPROCESS: c_uint = 4;

impl Call<'_> {
    pub(crate) fn cuEventCreate(&mut self, (event, flags): args::cuEventCreate) -> Outcome {
        let context = self.current()?;
        event.require()?;
        fail_if(flags & !EVENT_FLAGS != 0, INVALID_VALUE)?;
        fail_if(flags & INTERPROCESS != 0, CUresult::ERROR_NOT_SUPPORTED)?;
        let handle =
            self.state.events.insert(Event { context, flags, recorded: None, captured: None });
        event.write(CUevent(handle))
    }

    pub(crate) fn cuEventDestroy_v2(&mut self, event: CUevent) -> Outcome {
        self.event(event)?;
        self.state.events.remove(event.0);
        Ok(())
    }

    pub(crate) fn cuEventRecord(&mut self, (event, stream): args::cuEventRecord) -> Outcome {
        let index = self.stream(stream)?;
        fail_if(
            self.event(event)?.context != self.context_of(index),
            CUresult::ERROR_INVALID_HANDLE,
        )?;
        if let Some(point) = self.captured_point(index) {
            if let Some(found) = self.state.events.get_mut(event.0) {
                (found.recorded, found.captured) = (None, Some(point));
            }
            return Ok(());
        }
        let clock = self.clock_of_event(index);
        // Stores the record before its work is enqueued, because that work may run immediately.
        let op = OpRef { stream: index, id: self.state.next_op };
        if let Some(found) = self.state.events.get_mut(event.0) {
            found.recorded = Some(Record { op, time: None, clock });
            found.captured = None;
        }
        self.enqueue(index, Work::Record(event.0), &[]);
        Ok(())
    }

    pub(crate) fn cuEventRecordWithFlags(
        &mut self,
        (event, stream, flags): args::cuEventRecordWithFlags,
    ) -> Outcome {
        // CU_EVENT_RECORD_EXTERNAL is accepted and matters only in graphs.
        fail_if(flags > 1, INVALID_VALUE)?;
        self.cuEventRecord((event, stream))
    }

    pub(crate) fn cuEventQuery(&mut self, event: CUevent) -> Outcome {
        let found = self.event(event)?;
        let (captured, recorded) =
            (found.captured, found.recorded.as_ref().map(|record| record.op));
        self.refuse_captured(captured)?;
        self.query(recorded)?;
        self.host_waits_for_event(event);
        Ok(())
    }

    pub(crate) fn cuEventSynchronize(&mut self, event: CUevent) -> Outcome {
        let found = self.event(event)?;
        let context = found.context;
        let (captured, recorded) =
            (found.captured, found.recorded.as_ref().map(|record| record.op));
        self.refuse_captured(captured)?;
        let Some(op) = recorded else { return Ok(()) };
        self.complete(op);
        self.host_waits_for_event(event);
        self.release_idle(self.device_of(context));
        self.alive(context)
    }

    pub(crate) fn cuEventElapsedTime(
        &mut self,
        (milliseconds, start, end): args::cuEventElapsedTime,
    ) -> Outcome {
        milliseconds.require()?;
        let contexts = (self.event(start)?.context, self.event(end)?.context);
        fail_if(contexts.0 != contexts.1, CUresult::ERROR_INVALID_HANDLE)?;
        let time = |event: CUevent| {
            let found = self.event(event)?;
            match &found.recorded {
                Some(record) if found.flags & CU_EVENT_DISABLE_TIMING == 0 => Ok(record.time),
                _ => Err(CUresult::ERROR_INVALID_HANDLE),
            }
        };
        let (Some(start), Some(end)) = (time(start)?, time(end)?) else {
            return Err(CUresult::ERROR_NOT_READY);
        };
        let nanoseconds = end as f64 - start as f64;
        milliseconds.write((nanoseconds / 1e6) as f32)
    }

    /// Returns an event. The event determines the context, so a current context is not needed
    /// (measured).
    pub(crate) fn event(&self, event: CUevent) -> Outcome<&Event> {
        self.initialised()?;
        let found = self.state.events.get(event.0).ok_or_else(|| self.stale_handle())?;
        self.alive(found.context)?;
        Ok(found)
    }
}
