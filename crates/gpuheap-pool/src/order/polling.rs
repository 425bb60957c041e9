//! Polls streams to find out which frees are completed. A request polls before it makes a stream
//! wait.

use super::fences::group_calls;
use super::slots::Order;
use crate::source::{MemorySource, SourceResult};
use crate::stream::Stuck;
use crate::stream::{StreamRef, Ticket};

/// Free memory that a search found for a stream's request.
#[derive(Clone, Copy, Debug)]
pub struct Candidates<T> {
    /// Memory that the stream may use now.
    pub usable: Option<T>,
    /// Memory that the stream may use only after a wait, and the ticket of the free to wait for.
    pub other: Option<(T, Ticket)>,
    /// `true` if the search may find more memory once a poll has shown progress of other streams.
    pub may_grow: bool,
}

/// Maximum number of streams that one request polls. A program may have thousands of streams.
const MOST_POLLED: usize = 16;

impl Order {
    /// Returns `true` if the work of `stream` before `moment` is known to be completed.
    #[inline]
    pub fn is_completed(&self, stream: StreamRef, moment: u64) -> bool {
        let guard = self.streams[stream.slot()].guard.as_ref();
        moment == 0 || guard.is_some_and(|guard| moment <= guard.completed())
    }

    /// Notes work that is known to be completed because the program itself waited for it. Makes no
    /// driver call.
    #[inline]
    pub fn note_progress(&mut self, source: &mut dyn MemorySource) {
        if let Some(moments) = &self.moments
            && moments.changes() != self.noted_changes
        {
            self.note_new_progress(source);
        }
    }

    #[cold]
    fn note_new_progress(&mut self, source: &mut dyn MemorySource) {
        let Some(moments) = &self.moments else { return };
        self.noted_changes = moments.changes();
        for &slot in self.active.iter().chain(&self.detached) {
            self.streams[slot].note_progress(moments, source);
        }
    }

    /// Finds memory for `stream`. Prefers memory that the stream may use now, then memory that a
    /// poll makes usable, then memory for which the stream must wait. The argument of `search` is
    /// `true` after the poll.
    ///
    /// # Errors
    ///
    /// [`StreamUnusable`](crate::SourceError::StreamUnusable) if `stream` cannot be made to wait
    /// for the memory that was found.
    pub fn find<T>(
        &mut self,
        stream: StreamRef,
        source: &mut dyn MemorySource,
        mut search: impl FnMut(&Order, bool) -> Candidates<T>,
    ) -> SourceResult<Option<T>> {
        let found = search(self, false);
        if found.usable.is_some() || !found.may_grow {
            return Ok(found.usable);
        }
        let other = found.other.map(|(_, ticket)| ticket);
        self.find_after_poll(stream, other, source, search)
    }

    // Separate from `find`, so that the compiler inlines `search` in `find`. That saves 40
    // instructions in each allocation of `binned`.
    #[cold]
    fn find_after_poll<T>(
        &mut self,
        stream: StreamRef,
        other: Option<Ticket>,
        source: &mut dyn MemorySource,
        mut search: impl FnMut(&Order, bool) -> Candidates<T>,
    ) -> SourceResult<Option<T>> {
        self.poll_some(other, source)?;
        match search(self, true) {
            Candidates { usable: None, other: Some((other, ticket)), .. } => {
                self.order_after(stream, ticket, source).map(|()| Some(other))
            }
            found => Ok(found.usable),
        }
    }

    /// Polls the progress of every stream with frees in flight. Records a fence for frees without a
    /// fence.
    pub fn poll(&mut self, source: &mut dyn MemorySource) -> SourceResult {
        self.note_progress(source);
        group_calls(source, |source| {
            self.retire_abandoned(source);
            (0..self.active.len()).try_for_each(|at| self.poll_slot(self.active[at], source))
        })?;
        let streams = &mut self.streams;
        let ended = |slot: &mut usize| {
            let state = &mut streams[*slot];
            let ended = state.retired && state.reached == state.freed;
            if ended {
                state.after.clear();
            }
            ended
        };
        self.spare.extend(self.active.extract_if(.., ended));
        Ok(())
    }

    /// Polls the stream of `ticket` and a few others in rotation. If there are only a few streams,
    /// polls all of them.
    pub fn poll_some(
        &mut self,
        ticket: Option<Ticket>,
        source: &mut dyn MemorySource,
    ) -> SourceResult {
        if self.polls_all() {
            return self.poll(source);
        }
        self.note_progress(source);
        group_calls(source, |source| {
            if let Some(ticket) = ticket {
                self.poll_slot(ticket.slot(), source)?;
            }
            (0..MOST_POLLED).try_for_each(|_| {
                self.polled = (self.polled + 1) % self.active.len();
                self.poll_slot(self.active[self.polled], source)
            })
        })
    }

    /// Returns `true` if there are few enough streams for each request to poll all of them.
    #[inline]
    pub fn polls_all(&self) -> bool {
        self.active.len() <= MOST_POLLED
    }

    /// Polls the progress of one stream.
    fn poll_slot(&mut self, slot: usize, source: &mut dyn MemorySource) -> SourceResult {
        if self.streams[slot].reached < self.streams[slot].freed {
            self.fence_all(slot, source)?;
            // Usually the newest fence is reached, and so are all older fences. If the newest fence
            // is not reached, queries the fences one by one, oldest first.
            let newest = self.streams[slot].fences.back().copied();
            let all = match newest {
                Some((_, fence)) => source.is_fence_reached(fence)?,
                None => false,
            };
            while let Some((number, fence)) = self.streams[slot].fences.front().copied() {
                if !all && !source.is_fence_reached(fence)? {
                    break;
                }
                source.forget(fence);
                let state = &mut self.streams[slot];
                state.fences.pop_front();
                state.reached = number;
            }
        }
        Ok(())
    }

    /// Returns `true` if one of the heap's streams is capturing a graph. During a capture, waiting
    /// for the whole device is not possible.
    pub fn is_any_capturing(&self, source: &mut dyn MemorySource) -> SourceResult<bool> {
        for &slot in &self.active {
            let state = &self.streams[slot];
            if state
                .guard
                .as_ref()
                .is_some_and(|guard| guard.is_of_capture() && guard.may_capture())
            {
                return Ok(true);
            }
            // A stream that may have ended is not queried: a real driver crashes on a stale handle.
            if state.retired || state.transient {
                continue;
            }
            if source.is_capturing(self.stream_in(slot))? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the frees that no wait can complete now. A stream counts as capturing if the query
    /// fails.
    pub fn stuck(&mut self, source: &mut dyn MemorySource) -> Stuck {
        self.note_progress(source);
        let mut stuck = Stuck::default();
        let is_pending = |slot: &usize| self.streams[*slot].fenced() < self.streams[*slot].freed;
        let pending = || self.active.iter().copied().chain(self.detached).filter(is_pending);
        for slot in pending().filter(|slot| !self.streams[*slot].retired) {
            let state = &self.streams[slot];
            // A transient stream's handle may be invalid, so no query is made. Each of its frees is
            // fenced at once, except during a capture or if the fence failed.
            if state.transient || source.is_capturing(self.stream_in(slot)).unwrap_or(true) {
                stuck.add(slot, state.fenced());
            }
        }
        // Frees on ended streams are completed by a wait for the whole device. That wait is not
        // possible during a capture.
        let mut ended = pending().filter(|slot| self.streams[*slot].retired).peekable();
        if ended.peek().is_some() && self.is_any_capturing(source).unwrap_or(true) {
            ended.for_each(|slot| stuck.add(slot, self.streams[slot].fenced()));
        }
        stuck
    }

    /// Returns the frees that are not known to be completed. Other streams may reuse their memory
    /// only after a wait.
    pub fn unreached(&self) -> Stuck {
        let mut unreached = Stuck::default();
        for &slot in self.active.iter().chain(&self.detached) {
            let state = &self.streams[slot];
            if state.reached < state.freed {
                unreached.add(slot, state.reached);
            }
        }
        unreached
    }
}
