//! Events: points of streams that the host or another stream can wait for.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use gpuheap_driver::{CU_EVENT_DISABLE_TIMING, CUevent, CUresult, CUstream, check};
use gpuheap_pool::Completed;

use crate::device::{Context, ContextError};
use crate::error::{Error, ErrorKind};

/// A point of a stream, made by [`Stream::record`](crate::Stream::record). The event is reached
/// when all work enqueued before it has completed.
///
/// An event may outlive its stream, and may be used from any thread.
pub struct Event {
    context: Arc<Context>,
    raw: CUevent,
    timed: bool,
    /// Moment at which the event was recorded.
    moment: u64,
    completed: Arc<Completed>,
}

impl Event {
    /// Records an event at the current point of a stream of `context`.
    pub(crate) fn record(
        context: &Arc<Context>,
        stream: CUstream,
        timed: bool,
        completed: &Arc<Completed>,
    ) -> Result<Event, ContextError> {
        let _current = context.enter()?;
        let mut raw = CUevent::NULL;
        let flags = if timed { 0 } else { CU_EVENT_DISABLE_TIMING };
        // SAFETY: the driver writes the new event to the local `raw`; a context is current.
        check("cuEventCreate", unsafe { context.driver().cuEventCreate(&mut raw, flags) })?;
        // The wrapper is made before the record, so that it destroys the event if the record fails.
        let (context, completed) = (context.clone(), completed.clone());
        let mut event = Event { context, raw, timed, moment: 0, completed };
        // Begins a new moment (a count of waits and events) before the record. The reached event
        // completes all frees of earlier moments. Frees after the record are of this moment or
        // later.
        event.moment = event.context.moments.begin();
        // SAFETY: `event` owns `raw`. `stream` is alive: the caller is using it.
        let recorded = unsafe { event.context.driver().cuEventRecord(raw, stream) };
        check("cuEventRecord", recorded)?;
        Ok(event)
    }

    /// Returns `true` if the event is reached. Does not wait.
    ///
    /// # Errors
    ///
    /// The error of the work before the event; a driver error.
    pub fn is_done(&self) -> Result<bool, Error> {
        let _current = self.context.enter()?;
        // SAFETY: this object owns the event.
        match unsafe { self.context.driver().cuEventQuery(self.raw) } {
            CUresult::ERROR_NOT_READY => Ok(false),
            code => {
                check("cuEventQuery", code)?;
                self.note_reached();
                Ok(true)
            }
        }
    }

    /// Blocks this thread until the event is reached. Breaks no capture of a graph on other
    /// streams.
    ///
    /// # Errors
    ///
    /// The error of the work before the event; a driver error.
    pub fn synchronize(&self) -> Result<(), Error> {
        let _current = self.context.enter_aside()?;
        // SAFETY: this object owns the event.
        let waited = unsafe { self.context.driver().cuEventSynchronize(self.raw) };
        check("cuEventSynchronize", waited)?;
        self.note_reached();
        Ok(())
    }

    /// Records that all work before the event has completed.
    fn note_reached(&self) {
        self.context.moments.complete(&self.completed, self.moment);
    }

    pub(crate) fn moment(&self) -> u64 {
        self.moment
    }

    /// Returns the time on the device from `earlier` to this event, to about half a microsecond.
    /// Does not wait: both events must be reached.
    ///
    /// # Errors
    ///
    /// One of the events keeps no time, or is not reached yet; the events are of two devices;
    /// `earlier` is the later event.
    pub fn elapsed_since(&self, earlier: &Event) -> Result<Duration, Error> {
        let refused = |kind: ErrorKind, text: String| Err(kind.error(text));
        if !self.timed || !earlier.timed {
            return refused(
                ErrorKind::InvalidArgument,
                "an event made by Stream::record keeps no time; make both by Stream::record_timed"
                    .to_owned(),
            );
        }
        if !self.context.is_same(&earlier.context) {
            // After a reset, the same device has a new context. The error then names the reset.
            self.context.check_alive()?;
            earlier.context.check_alive()?;
            return refused(
                ErrorKind::WrongDevice,
                format!(
                    "one event is of {} and the other of {}, which have no clock in common; record both \
                 on streams of one device",
                    self.context.beside(&earlier.context),
                    earlier.context.beside(&self.context)
                ),
            );
        }
        let mut milliseconds = 0.0;
        let _current = self.context.enter()?;
        // SAFETY: `milliseconds` outlives the call, and both wrappers own their events.
        let code = unsafe {
            self.context.driver().cuEventElapsedTime(&mut milliseconds, earlier.raw, self.raw)
        };
        if code == CUresult::ERROR_NOT_READY {
            return refused(
                ErrorKind::Busy,
                "the time between two events is known once both are reached; call synchronize on \
                 them first"
                    .to_owned(),
            );
        }
        check("cuEventElapsedTime", code)?;
        match Duration::try_from_secs_f64(f64::from(milliseconds) / 1e3) {
            Ok(elapsed) => Ok(elapsed),
            Err(_) => refused(
                ErrorKind::InvalidArgument,
                format!(
                    "the event given as the earlier one is {} ms later; swap them",
                    -milliseconds
                ),
            ),
        }
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    pub(crate) fn raw(&self) -> CUevent {
        self.raw
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Ok(_current) = self.context.enter() {
            // SAFETY: this object owns the event and does not use it again. The driver keeps the
            // event for work that waits for it.
            let _: CUresult = unsafe { self.context.driver().cuEventDestroy_v2(self.raw) };
        }
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.timed { "Event (timed)" } else { "Event" })
    }
}
