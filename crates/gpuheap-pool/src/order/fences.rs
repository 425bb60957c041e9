//! Numbers each stream's frees (tickets), records points of streams (fences), and makes streams
//! wait for the fences of other streams.

use super::slots::Order;
use crate::source::{Fence, MemorySource, SourceError, SourceResult};
use crate::stream::{StreamRef, Ticket};

/// Maximum number of fences kept for a stream. Each fence is an event of the driver.
pub(super) const MOST_FENCES: usize = 32;

impl Order {
    /// Notes a free on `stream` and returns its ticket.
    ///
    /// If the stream is transient, its handle may be invalid later, so a fence is recorded
    /// immediately. For other streams, makes no driver call. If the recording fails, the stream's
    /// next fence covers this free too.
    ///
    /// If the stream has ended, its last fence covers this free, because the stream has no later
    /// work. If the ended stream was transient, only a wait for the whole device completes this
    /// free.
    #[inline]
    pub fn note_free(&mut self, stream: StreamRef, source: &mut dyn MemorySource) -> Ticket {
        if self.frees_completed {
            return Ticket { slot: stream.slot, number: 0 };
        }
        let state = &mut self.streams[stream.slot()];
        if state.generation != stream.generation || state.retired || state.transient {
            return self.note_free_at_end(stream, source);
        }
        let number = state.count_free(self.moments.as_ref());
        Ticket { slot: stream.slot, number }
    }

    /// Notes a free on a stream that ended, or that may end unannounced.
    #[cold]
    fn note_free_at_end(&mut self, stream: StreamRef, source: &mut dyn MemorySource) -> Ticket {
        let stream = if self.is_detached(stream) { self.detached_stream() } else { stream };
        let state = &mut self.streams[stream.slot()];
        if state.retired && !state.transient {
            return Ticket { slot: stream.slot, number: state.freed };
        }
        let number = state.count_free(self.moments.as_ref());
        // No fence is recorded in a capture: memory freed there is kept until the graph has ended.
        if state.transient && !state.retired && !state.is_of_capture() {
            let _ = group_calls(source, |source| self.record(stream.slot(), source));
        }
        Ticket { slot: stream.slot, number }
    }

    /// Sets whether frees from now on count as completed immediately. Tickets of such frees get the
    /// number 0. Streams count frees from 1, so number 0 always counts as completed.
    #[inline]
    pub fn set_frees_completed(&mut self, completed: bool) {
        self.frees_completed = completed;
    }

    /// Sets whether [`order_after`](Order::order_after) refuses to make any stream wait. It always
    /// refuses for a capturing stream. The heap sets this while it has memory to spare.
    #[inline]
    pub fn refuse_waits(&mut self, refuses: bool) {
        self.refuses_waits = refuses;
    }

    /// Returns `true` if the block freed with `ticket` may be used on `stream` now, with no new
    /// wait.
    #[inline]
    pub fn is_usable_on(&self, ticket: Ticket, stream: StreamRef) -> bool {
        ticket.slot == stream.slot
            || self.is_fence_reached(ticket)
            || self.after(stream, ticket.slot) >= ticket.number
    }

    /// Returns `true` if the work before `ticket` is known to be completed.
    #[inline]
    pub fn is_fence_reached(&self, ticket: Ticket) -> bool {
        self.streams[ticket.slot()].reached >= ticket.number
    }

    /// Returns `true` if the work before `ticket` is known to be completed, or if another stream
    /// can wait for a fence that covers the work.
    pub fn is_fenced(&self, ticket: Ticket) -> bool {
        self.streams[ticket.slot()].fenced() >= ticket.number
    }

    /// Returns the number of the newest free known to be completed on the stream in `slot`.
    pub fn reached(&self, slot: usize) -> u64 {
        self.streams[slot].reached
    }

    /// Returns `true` if freed memory is kept for a graph that has not ended.
    pub fn keeps_for_graph(&self) -> bool {
        self.streams.iter().any(|state| state.is_of_capture() && state.reached < state.freed)
    }

    /// Makes `stream` wait for the work before `ticket`, unless `stream` already waits for that
    /// work. Does not block the host.
    pub fn order_after(
        &mut self,
        stream: StreamRef,
        ticket: Ticket,
        source: &mut dyn MemorySource,
    ) -> SourceResult {
        if self.is_usable_on(ticket, stream) {
            return Ok(());
        }
        if self.refuses_waits {
            return Err(SourceError::StreamUnusable);
        }
        let number = group_calls(source, |source| {
            let (number, fence) = self.fence(ticket, source)?;
            source.order_after(stream, fence).map(|()| number)
        });
        let number = number.map_err(|error| match error {
            // Other streams cannot wait for a capturing stream, nor for an ended stream.
            SourceError::Capturing => SourceError::StreamUnusable,
            error => error,
        })?;
        self.streams[stream.slot()].after.insert(ticket.slot, number);
        Ok(())
    }

    /// Makes `stream` wait for the frees with these tickets, after [polling](Order::poll_some) some
    /// streams. Skips frees for which `stream` needs no new wait.
    ///
    /// # Errors
    ///
    /// [`SourceError::StreamUnusable`] if `stream` cannot be made to wait for one of the frees.
    pub fn order_after_all(
        &mut self,
        stream: StreamRef,
        tickets: &[Ticket],
        source: &mut dyn MemorySource,
    ) -> SourceResult {
        if tickets.is_empty() {
            return Ok(());
        }
        self.poll_some(tickets.first().copied(), source)?;
        tickets.iter().try_for_each(|ticket| self.order_after(stream, *ticket, source))
    }

    /// Makes `stream` wait for all work enqueued on `other` so far. Does not block the host.
    pub fn follow(
        &mut self,
        stream: StreamRef,
        other: StreamRef,
        source: &mut dyn MemorySource,
    ) -> SourceResult {
        if stream.slot == other.slot && !self.is_detached(other) {
            return Ok(());
        }
        // The ticket of a free made now covers all work enqueued on `other` so far.
        let ticket = self.note_free(other, source);
        self.order_after(stream, ticket, source)
    }

    /// Returns a fence that covers all work enqueued on `stream` so far; `None` if all of it is
    /// completed.
    pub fn fence_after(
        &mut self,
        stream: StreamRef,
        source: &mut dyn MemorySource,
    ) -> SourceResult<Option<Fence>> {
        let ticket = self.note_free(stream, source);
        if self.is_fence_reached(ticket) {
            return Ok(None);
        }
        group_calls(source, |source| self.fence(ticket, source)).map(|(_, fence)| Some(fence))
    }

    /// Returns the newest fence of every stream with frees in flight. A capturing stream may have
    /// no fence.
    pub fn pending_fences(&mut self, source: &mut dyn MemorySource) -> SourceResult<Vec<Fence>> {
        let mut fences = Vec::new();
        self.note_progress(source);
        group_calls(source, |source| {
            for at in 0..self.active.len() {
                let slot = self.active[at];
                if self.streams[slot].reached < self.streams[slot].freed {
                    self.fence_all(slot, source)?;
                    fences.extend(self.streams[slot].fences.back().map(|(_, fence)| *fence));
                }
            }
            Ok(fences)
        })
    }

    /// Returns `true` if some frees on retired streams have no fence. Their memory can be reused
    /// only after a wait for the whole device.
    pub fn needs_device(&self) -> bool {
        self.active.iter().chain(&self.detached).any(|&slot| {
            let state = &self.streams[slot];
            state.retired && state.fenced() < state.freed
        })
    }

    /// Notes that all work of the device, and so every free, is completed. Frees in the capture of
    /// a graph are not completed, because the graph may still be launched.
    pub fn complete_all(&mut self, source: &mut dyn MemorySource) {
        for state in self.streams.iter_mut().filter(|state| !state.is_of_capture()) {
            state.reached = state.freed;
            for (_, fence) in state.fences.drain(..) {
                source.forget(fence);
            }
        }
    }

    fn after(&self, waiter: StreamRef, on: u32) -> u64 {
        self.streams[waiter.slot()].after.get(&on).copied().unwrap_or(0)
    }

    /// Returns the oldest fence that covers `ticket`, with the ticket number of the last free that
    /// this fence covers.
    fn fence(
        &mut self,
        ticket: Ticket,
        source: &mut dyn MemorySource,
    ) -> SourceResult<(u64, Fence)> {
        let slot = ticket.slot();
        if self.streams[slot].fenced() < ticket.number {
            self.fence_all(slot, source)?;
        }
        let covering =
            self.streams[slot].fences.iter().find(|(number, _)| *number >= ticket.number);
        covering.copied().ok_or(SourceError::StreamUnusable)
    }

    pub(super) fn fence_all(&mut self, slot: usize, source: &mut dyn MemorySource) -> SourceResult {
        let state = &self.streams[slot];
        if state.retired || state.transient {
            return Ok(());
        }
        match self.record(slot, source) {
            // Frees of a capturing stream stay in flight until they are fenced after the capture.
            Err(SourceError::Capturing) => Ok(()),
            recorded => recorded,
        }
    }

    /// Fences all frees of a stream, by a new fence or by recording the newest fence again.
    pub(super) fn record(&mut self, slot: usize, source: &mut dyn MemorySource) -> SourceResult {
        let state = &mut self.streams[slot];
        if state.fenced() >= state.freed {
            return Ok(());
        }
        if state.fences.len() >= MOST_FENCES {
            state.forget_reached(source);
        }
        let stream = StreamRef { slot: slot as u32, generation: state.generation, raw: state.raw };
        let full = state.fences.len() >= MOST_FENCES;
        match state.fences.back_mut().filter(|_| full) {
            Some((number, fence)) => {
                source.record_again(*fence, stream)?;
                *number = state.freed;
            }
            None => {
                let fence = source.record(stream)?;
                state.fences.push_back((state.freed, fence));
            }
        }
        Ok(())
    }
}

/// Makes driver calls in one group, so that the driver is entered and left only once. Entering and
/// leaving together take as long as one call.
pub(super) fn group_calls<R>(
    source: &mut dyn MemorySource,
    calls: impl FnOnce(&mut dyn MemorySource) -> R,
) -> R {
    struct Group<'a>(&'a mut dyn MemorySource);

    impl Drop for Group<'_> {
        fn drop(&mut self) {
            self.0.end_calls();
        }
    }

    source.begin_calls();
    calls(&mut *Group(source).0)
}
