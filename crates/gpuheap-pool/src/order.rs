//! Stream order: when a stream may reuse a block that another stream freed.
//!
//! Every free gets a [`Ticket`]: its stream, and a number that counts that stream's frees. A block
//! may be handed out again
//!
//! * on its own stream at once, because the stream runs in order;
//! * on another stream once that stream waits for a fence recorded at or after the free;
//! * on any stream once such a fence is known to be reached.
//!
//! A heap keeps a stream alive until every free on the stream is fenced. It cannot keep a foreign
//! stream alive, so the program announces the end of a foreign stream first.
//!
//! A fence is recorded when another stream wants a block, not at every free: recording one costs
//! 140 ns on an H200, and most blocks are reused by their own stream. A wait for the fence may
//! therefore cover work enqueued after the free. A stream that may end unannounced is fenced at
//! every free, because the heap cannot name it later.
//!
//! A stream keeps few fences. If it has too many, some that are reached are forgotten. If none is
//! reached, the newest fence is recorded again, and then covers the later frees too. A stream that
//! already waits for that fence still waits for its earlier point.
//!
//! The program's own waits are learnt without a fence ([`Moments`]). Each free is noted with its
//! moment. Frees before a completed moment are completed.
//!
//! A stream that is capturing a graph is not fenced and does not wait: both would break the
//! capture. For other streams its frees stay in flight until the capture ends.

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::progress::Moments;
use crate::source::{Fence, MemorySource, SourceError};
use crate::stream::{StreamHandle, StreamRef, Ticket};
use crate::stuck::Stuck;

/// Guard by which a heap keeps a stream alive.
pub trait StreamGuard: Send {
    /// Returns `true` if the program has dropped the stream. The legacy default stream is never
    /// abandoned. A thread's own default stream is abandoned once the thread has ended and the
    /// program has dropped the stream. A foreign stream is abandoned when the program announces its
    /// end.
    fn is_abandoned(&self) -> bool;

    /// Returns `true` if the stream is foreign: made, and later destroyed, by other code.
    fn is_foreign(&self) -> bool;

    /// Returns `true` if the stream will end unannounced.
    fn is_unannounced(&self) -> bool;

    /// Returns `true` if the stream was retired, so its handle may be stale.
    fn is_retired(&self) -> bool;

    /// Returns the known progress of the work in the stream's context.
    fn moments(&self) -> &Arc<Moments>;

    /// Returns the moment before which the stream's work is known to be completed.
    fn completed(&self) -> u64;

    /// Makes the stream refuse all work from now on, without a driver call on its handle.
    fn refuse_work(&self);

    /// Notes that all work is completed on a stream that refuses more.
    fn complete(&self);

    /// Returns `true` if the stream is named within one capture of a graph. Memory freed on it is
    /// kept for the graph, and no wait completes these frees.
    fn is_of_capture(&self) -> bool;

    /// Returns `true` if the stream may be capturing a graph now. Only for a stream that is
    /// [of a capture](StreamGuard::is_of_capture).
    fn may_capture(&self) -> bool;
}

/// Order of a heap's streams, as far as it is known.
#[derive(Default)]
pub struct Order {
    streams: Vec<StreamState>,
    /// Slot of the stream that was named last: most often it is named again.
    last: u32,
    /// Slots of streams about which something may still be learnt. A stream that ended and whose
    /// frees are completed is not among them.
    active: Vec<usize>,
    /// Position in `active` of the stream that was polled last, as they are polled in turns.
    turn: usize,
    /// Number of active streams left after the last poll.
    left: usize,
    /// Slots of ended streams, for new streams. A slot's numbers continue, so old tickets stay
    /// valid. If a block of the old stream is freed later, the free follows the new stream: later
    /// than necessary, never too early.
    spare: Vec<usize>,
    /// Slot for frees on streams that ended unannounced and whose slot has a new stream.
    orphans: Option<usize>,
    /// Progress learnt from the program's own waits, and how much of it is noted in `streams`.
    moments: Option<Arc<Moments>>,
    learnt: u64,
    /// `true` if all work before a free made now is completed.
    frees_completed: bool,
    /// `true` if no stream may be made to wait for another one now.
    refuses_waits: bool,
    /// Slots of the streams that are not retired, by the driver's id.
    slots: FxHashMap<u64, u32>,
    /// The driver's ids of retired streams, for callers that keep data by stream.
    ended: Vec<u64>,
}

/// Free memory that a search found for a stream.
#[derive(Clone, Copy, Debug)]
pub struct Candidates<T> {
    /// Memory that the stream may use now.
    pub usable: Option<T>,
    /// Memory that the stream may use once it waits for this free.
    pub other: Option<(T, Ticket)>,
    /// `true` if a poll may make more of the memory usable.
    pub may_grow: bool,
}

/// Maximum number of fences kept for a stream. Each is an event of the driver.
const MOST_FENCES: usize = 32;

/// Number of streams, approximately, that one request may poll.
const FEW: usize = 16;

/// Number of streams that may be active before ended streams are looked for.
const CROWD: usize = 32;

#[derive(Default)]
struct StreamState {
    id: u64,
    /// Number of streams that used the slot before.
    turn: u32,
    raw: StreamHandle,
    /// Keeps the stream alive while frees on it may have to be fenced.
    guard: Option<Box<dyn StreamGuard>>,
    /// `true` if the program dropped the stream or is about to end it. Its last fence covers all
    /// its work.
    retired: bool,
    /// `true` if the stream may be named only during its own calls. Its frees are fenced at once.
    transient: bool,
    /// Number of the last free.
    freed: u64,
    /// Last free that is known to be completed, with all frees before it.
    reached: u64,
    /// Fences not known to be reached, oldest first, each with the last free that it covers.
    fences: VecDeque<(u64, Fence)>,
    /// Moments of frees not known to be completed, oldest first, each with its last free.
    moments: VecDeque<(u64, u64)>,
    /// Frees of other streams, by slot, for which this stream already waits.
    after: FxHashMap<u32, u64>,
}

/// Maximum number of moments kept apart for one stream. Beyond that, the frees of the oldest moment
/// count as those of the next one. A stream gets there only if the program waits often and calls
/// nothing of the heap in between.
const MOST_MOMENTS: usize = 8;

impl StreamState {
    /// Numbers a free that is made now.
    #[inline]
    fn count_free(&mut self, moments: Option<&Arc<Moments>>) -> u64 {
        self.freed += 1;
        self.note_moment(moments);
        self.freed
    }

    /// Notes that the last free was made in the current moment.
    #[inline]
    fn note_moment(&mut self, moments: Option<&Arc<Moments>>) {
        let Some(moments) = moments else { return };
        let now = moments.now();
        match self.moments.back_mut() {
            Some((moment, number)) if *moment == now => *number = self.freed,
            _ => self.begin_moment(now),
        }
    }

    #[cold]
    fn begin_moment(&mut self, now: u64) {
        self.moments.push_back((now, self.freed));
        if self.moments.len() > MOST_MOMENTS {
            self.moments.pop_front();
        }
    }

    /// Notes the progress of the stream that the program's own waits have shown.
    ///
    /// For a retired stream, only a wait for the whole device shows progress.
    fn learn(&mut self, moments: &Moments, source: &mut dyn MemorySource) {
        let completed = match &self.guard {
            Some(guard) => guard.completed(),
            None => moments.completed_by_all(),
        };
        while let Some(&(moment, number)) = self.moments.front()
            && moment < completed
        {
            self.moments.pop_front();
            self.reached = self.reached.max(number);
        }
        while let Some(&(number, fence)) = self.fences.front()
            && number <= self.reached
        {
            self.fences.pop_front();
            source.forget(fence);
        }
    }

    /// Returns `true` if memory freed on the stream is kept for a graph.
    fn is_of_capture(&self) -> bool {
        self.guard.as_ref().is_some_and(|guard| guard.is_of_capture())
    }

    /// Returns `true` if the stream was named only for a call that is over by now.
    #[inline]
    fn has_passed(&self) -> bool {
        self.transient && self.guard.as_ref().is_some_and(|guard| guard.is_abandoned())
    }

    fn fenced(&self) -> u64 {
        self.fences.back().map_or(self.reached, |(number, _)| *number)
    }

    /// Forgets the two oldest fences if they are reached, which is more than are recorded
    /// meanwhile. A fence whose query fails counts as not reached.
    fn forget_reached(&mut self, source: &mut dyn MemorySource) {
        for _ in 0..2 {
            let Some((number, fence)) = self.fences.front().copied() else { return };
            if !matches!(source.is_fence_reached(fence), Ok(true)) {
                return;
            }
            source.forget(fence);
            self.fences.pop_front();
            self.reached = number;
        }
    }
}

impl Order {
    /// Returns the stream with the driver's `id`; `None` if it is not registered or has ended.
    pub fn known(&self, id: u64) -> Option<StreamRef> {
        let slot = *self.slots.get(&id)?;
        Some(self.of_slot(slot as usize))
    }

    /// Returns `true` if frees on the stream are fenced at once, because it can be named at no
    /// other time.
    #[inline]
    pub fn is_transient(&self, stream: StreamRef) -> bool {
        self.streams[stream.slot()].transient
    }

    /// Returns `true` if memory freed on the stream is kept for a graph.
    pub fn is_of_capture(&self, stream: StreamRef) -> bool {
        self.streams[stream.slot()].is_of_capture()
    }

    /// Returns `true` if freed memory is kept for a graph that has not ended.
    pub fn keeps_for_graph(&self) -> bool {
        self.streams.iter().any(|state| state.is_of_capture() && state.reached < state.freed)
    }

    /// Returns the driver's id of a retired stream, each only once.
    #[inline]
    pub fn next_ended(&mut self) -> Option<u64> {
        self.ended.pop()
    }

    /// Returns the stream with the driver's `id`. At its first use the stream is registered, with
    /// the guard that keeps it alive.
    pub fn stream(
        &mut self,
        id: u64,
        raw: StreamHandle,
        guard: impl FnOnce() -> Option<Box<dyn StreamGuard>>,
        source: &mut dyn MemorySource,
    ) -> StreamRef {
        let last = self.streams.get(self.last as usize);
        let is_named = |state: &&StreamState| state.id == id && !state.retired;
        if let Some(last) = last.filter(|state| is_named(state) && !state.has_passed()) {
            return StreamRef { slot: self.last, turn: last.turn, raw };
        }
        if let Some(&slot) = self.slots.get(&id) {
            if !self.streams[slot as usize].has_passed() {
                self.last = slot;
                return StreamRef { slot, turn: self.streams[slot as usize].turn, raw };
            }
            // Never fails: it makes no driver call for a transient stream.
            let _ = self.retire_slot(slot as usize, source);
        }
        // A program that makes streams also ends them, so this is the time to look for ended ones.
        self.retire_abandoned(source);
        if self.active.len() >= CROWD.max(2 * self.left) {
            // This poll only frees slots. If it fails, the streams are polled again when there are
            // more of them.
            let _ = self.poll(source);
            self.left = self.active.len();
        }
        let guard = guard();
        if let Some(guard) = &guard
            && self.moments.is_none()
        {
            self.moments = Some(guard.moments().clone());
        }
        let unannounced = guard.as_ref().is_some_and(|guard| guard.is_unannounced());
        // A transient stream must not inherit a slot whose blocks may be freed while the stream
        // cannot be named. It takes only the slot of another transient one, whose blocks are freed
        // by now.
        let spare =
            self.spare.iter().rposition(|slot| self.streams[*slot].transient == unannounced);
        let is_retired = guard.as_ref().is_some_and(|guard| guard.is_retired());
        let spare = spare.filter(|_| !is_retired);
        let slot = spare.map(|at| self.spare.swap_remove(at)).unwrap_or_else(|| {
            self.streams.push(StreamState::default());
            self.streams.len() - 1
        });
        let StreamState { freed, reached, turn, .. } = self.streams[slot];
        let turn = turn.wrapping_add(1);
        // A stream retired meanwhile may no longer exist, so its handle is not used. Its progress
        // is unknown: memory freed on it is reused only after a wait for the whole device.
        let retired = is_retired;
        let guard = guard.filter(|_| !retired);
        let transient = unannounced || retired;
        self.streams[slot] = StreamState {
            id,
            raw,
            guard,
            retired,
            transient,
            freed,
            reached,
            turn,
            ..Default::default()
        };
        self.active.push(slot);
        if !retired {
            self.slots.insert(id, slot as u32);
        }
        StreamRef { slot: slot as u32, turn, raw }
    }

    /// Notes a free on `stream` and returns its ticket.
    ///
    /// Only a transient stream makes driver calls here, a few: it cannot be named later, so its
    /// fence is recorded at once. If that fails, the stream's next fence covers this free too.
    ///
    /// The last fence of an ended stream covers this free, because the stream has no work after it.
    /// If a transient stream ended, its last fence may not cover the free, so no fence does.
    #[inline]
    pub fn freed(&mut self, stream: StreamRef, source: &mut dyn MemorySource) -> Ticket {
        if self.frees_completed {
            return Ticket { slot: stream.slot, number: 0 };
        }
        let state = &mut self.streams[stream.slot()];
        if state.turn != stream.turn || state.retired || state.transient {
            return self.freed_at_an_end(stream, source);
        }
        let number = state.count_free(self.moments.as_ref());
        Ticket { slot: stream.slot, number }
    }

    /// Numbers a free on a stream that ended, or that may end unannounced.
    #[cold]
    fn freed_at_an_end(&mut self, stream: StreamRef, source: &mut dyn MemorySource) -> Ticket {
        let stream = if self.is_orphaned(stream) { self.orphanage() } else { stream };
        let state = &mut self.streams[stream.slot()];
        if state.retired && !state.transient {
            return Ticket { slot: stream.slot, number: state.freed };
        }
        let number = state.count_free(self.moments.as_ref());
        if state.transient && !state.retired {
            let _ = self.record(stream.slot(), source);
        }
        Ticket { slot: stream.slot, number }
    }

    /// Sets whether work before later frees counts as completed. If so, tickets get the number
    /// zero, which every stream has reached.
    #[inline]
    pub fn frees_as_completed(&mut self, completed: bool) {
        self.frees_completed = completed;
    }

    /// Sets whether [`order_after`](Order::order_after) refuses to make a stream wait, as it does
    /// for a capturing stream. Used while there is memory to spare.
    #[inline]
    pub fn refuse_waits(&mut self, refuses: bool) {
        self.refuses_waits = refuses;
    }

    /// Returns `true` if the work of `stream` before `moment` is known to be completed.
    #[inline]
    pub fn is_completed(&self, stream: StreamRef, moment: u64) -> bool {
        let guard = self.streams[stream.slot()].guard.as_ref();
        moment == 0 || guard.is_some_and(|guard| moment <= guard.completed())
    }

    /// Notes the progress that the program's own waits have shown since the last call. Makes no
    /// driver call.
    #[inline]
    pub fn learn(&mut self, source: &mut dyn MemorySource) {
        if let Some(moments) = &self.moments
            && moments.learnt() != self.learnt
        {
            self.learn_anew(source);
        }
    }

    #[cold]
    fn learn_anew(&mut self, source: &mut dyn MemorySource) {
        let Some(moments) = &self.moments else { return };
        self.learnt = moments.learnt();
        for &slot in self.active.iter().chain(&self.orphans) {
            self.streams[slot].learn(moments, source);
        }
    }

    /// Returns `true` if the block of `ticket` may be used on `stream` now, with no new wait.
    #[inline]
    pub fn is_usable_on(&self, ticket: Ticket, stream: StreamRef) -> bool {
        ticket.slot == stream.slot
            || self.is_fence_reached(ticket)
            || self.after(stream, ticket.slot) >= ticket.number
    }

    /// Retires the stream with the driver's `id`, which the program is about to end: fences all its
    /// work and drops the guard. If fencing fails, nothing changes.
    pub fn retire(&mut self, id: u64, source: &mut dyn MemorySource) -> Result<(), SourceError> {
        match self.slots.get(&id) {
            Some(&slot) => self.retire_slot(slot as usize, source),
            None => Ok(()),
        }
    }

    /// Returns the guards of the foreign streams that the heap knows.
    pub fn foreign(&self) -> impl Iterator<Item = &dyn StreamGuard> {
        let guards = self.active.iter().filter_map(|&slot| self.streams[slot].guard.as_deref());
        guards.filter(|guard| guard.is_foreign())
    }

    /// Returns the driver's ids of the foreign streams that the heap knows.
    pub fn foreign_ids(&self) -> impl Iterator<Item = u64> {
        let states = self.active.iter().map(|&slot| &self.streams[slot]);
        let foreign = |guard: &dyn StreamGuard| guard.is_foreign();
        states
            .filter(move |state| state.guard.as_deref().is_some_and(foreign))
            .map(|state| state.id)
    }

    /// Retires all foreign streams without a driver call on their handles. They refuse more work,
    /// so a later free on one counts as made now. Unless their work is `completed`, that memory is
    /// reused only after a wait for the whole device.
    pub fn retire_foreign(&mut self, completed: bool) {
        for &slot in &self.active {
            let state = &mut self.streams[slot];
            if state.guard.as_ref().is_some_and(|guard| guard.is_foreign()) {
                state.retired = true;
                state.freed += u64::from(!completed);
                state.note_moment(self.moments.as_ref());
                state.guard = None;
                self.slots.remove(&state.id);
                self.ended.push(state.id);
            }
        }
    }

    /// Returns the stream that now stands for a block's stream: itself, or the newer stream in its
    /// slot. `None` if work can be enqueued on neither.
    #[inline]
    pub fn current(&self, stream: StreamRef) -> Option<StreamRef> {
        let state = &self.streams[stream.slot()];
        (!state.retired && !self.is_orphaned(stream)).then(|| self.of_slot(stream.slot()))
    }

    /// Returns the stream that stands for a block's stream after the call that named it: itself, or
    /// the newer stream in its slot. `None` if the stream is transient or takes no more work.
    #[inline]
    pub fn current_later(&self, stream: StreamRef) -> Option<StreamRef> {
        self.current(stream).filter(|stream| !self.streams[stream.slot()].transient)
    }

    /// Returns the number of slots for streams.
    #[cfg(any(test, feature = "testing"))]
    pub fn places(&self) -> usize {
        self.streams.len()
    }

    /// Returns `true` if there are frees on retired streams that no fence covers. Their memory can
    /// be reused only after a wait for the whole device.
    pub fn needs_device(&self) -> bool {
        self.active.iter().chain(&self.orphans).any(|&slot| {
            let state = &self.streams[slot];
            state.retired && state.fenced() < state.freed
        })
    }

    /// Notes that all work of the device, and so every free, is completed. A graph may still be
    /// launched, so frees in its capture are not.
    pub fn all_over(&mut self, source: &mut dyn MemorySource) {
        for state in self.streams.iter_mut().filter(|state| !state.is_of_capture()) {
            state.reached = state.freed;
            for (_, fence) in state.fences.drain(..) {
                source.forget(fence);
            }
        }
    }

    /// Returns `true` if the work before `ticket` is known to be completed.
    #[inline]
    pub fn is_fence_reached(&self, ticket: Ticket) -> bool {
        self.streams[ticket.slot()].reached >= ticket.number
    }

    /// Returns `true` if another stream can wait for the work before `ticket` now, or need not
    /// wait.
    pub fn is_fenced(&self, ticket: Ticket) -> bool {
        self.streams[ticket.slot()].fenced() >= ticket.number
    }

    /// Returns the last free on the stream in `slot` that is known to be completed.
    pub fn reached(&self, slot: usize) -> u64 {
        self.streams[slot].reached
    }

    /// Makes `stream` wait for the work before `ticket`, unless it already does. Does not block the
    /// host.
    pub fn order_after(
        &mut self,
        stream: StreamRef,
        ticket: Ticket,
        source: &mut dyn MemorySource,
    ) -> Result<(), SourceError> {
        if self.is_usable_on(ticket, stream) {
            return Ok(());
        }
        if self.refuses_waits {
            return Err(SourceError::StreamUnusable);
        }
        let number = together(source, |source| {
            let (number, fence) = self.fence(ticket, source)?;
            source.order_after(stream, fence).map(|()| number)
        });
        let number = number.map_err(|error| match error {
            // A capturing stream can be waited for as little as one that no longer exists.
            SourceError::Capturing => SourceError::StreamUnusable,
            error => error,
        })?;
        self.streams[stream.slot()].after.insert(ticket.slot, number);
        Ok(())
    }

    /// Finds memory for `stream`: what it may use now; else, after polling how far other streams
    /// got, what it may use then; else what it is made to wait for. `search` is told whether the
    /// streams were polled.
    ///
    /// # Errors
    ///
    /// [`SourceError::StreamUnusable`] if `stream` cannot be made to wait for what was found.
    pub fn find<T>(
        &mut self,
        stream: StreamRef,
        source: &mut dyn MemorySource,
        mut search: impl FnMut(&Order, bool) -> Candidates<T>,
    ) -> Result<Option<T>, SourceError> {
        let found = search(self, false);
        if found.usable.is_some() || !found.may_grow {
            return Ok(found.usable);
        }
        self.poll_some(found.other.map(|(_, ticket)| ticket), source)?;
        match search(self, true) {
            Candidates { usable: None, other: Some((other, ticket)), .. } => {
                self.order_after(stream, ticket, source).map(|()| Some(other))
            }
            found => Ok(found.usable),
        }
    }

    /// Makes `stream` wait for frees that it does not come after yet, once the streams were polled.
    ///
    /// # Errors
    ///
    /// [`SourceError::StreamUnusable`] if `stream` cannot be made to wait for one of them.
    pub fn order_after_all(
        &mut self,
        stream: StreamRef,
        tickets: &[Ticket],
        source: &mut dyn MemorySource,
    ) -> Result<(), SourceError> {
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
    ) -> Result<(), SourceError> {
        if stream.slot == other.slot && !self.is_orphaned(other) {
            return Ok(());
        }
        // The ticket of a free made now covers all work enqueued on `other` so far.
        let ticket = self.freed(other, source);
        self.order_after(stream, ticket, source)
    }

    /// Returns a fence behind all work enqueued on `stream` so far; `None` if all of it is
    /// completed.
    pub fn mark(
        &mut self,
        stream: StreamRef,
        source: &mut dyn MemorySource,
    ) -> Result<Option<Fence>, SourceError> {
        let ticket = self.freed(stream, source);
        if self.is_fence_reached(ticket) {
            return Ok(None);
        }
        together(source, |source| self.fence(ticket, source)).map(|(_, fence)| Some(fence))
    }

    /// Polls the progress of every stream with frees in flight. Records a fence for frees that have
    /// none.
    pub fn poll(&mut self, source: &mut dyn MemorySource) -> Result<(), SourceError> {
        self.learn(source);
        together(source, |source| {
            self.retire_abandoned(source);
            (0..self.active.len()).try_for_each(|at| self.ask(self.active[at], source))
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

    /// Polls the stream of `ticket` and a few others, in turns: one request must not poll thousands
    /// of streams. If there are only a few streams, polls all of them.
    pub fn poll_some(
        &mut self,
        ticket: Option<Ticket>,
        source: &mut dyn MemorySource,
    ) -> Result<(), SourceError> {
        if self.is_few() {
            return self.poll(source);
        }
        self.learn(source);
        together(source, |source| {
            if let Some(ticket) = ticket {
                self.ask(ticket.slot(), source)?;
            }
            (0..FEW).try_for_each(|_| {
                self.turn = (self.turn + 1) % self.active.len();
                self.ask(self.active[self.turn], source)
            })
        })
    }

    /// Returns `true` if there are few enough streams for each request to poll all of them.
    #[inline]
    pub fn is_few(&self) -> bool {
        self.active.len() <= FEW
    }

    /// Polls the progress of one stream.
    fn ask(&mut self, slot: usize, source: &mut dyn MemorySource) -> Result<(), SourceError> {
        if self.streams[slot].reached < self.streams[slot].freed {
            self.fence_all(slot, source)?;
            // Usually the newest fence is reached, and so all are. If it is not, the fences are
            // queried from the oldest on.
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

    /// Returns `true` if one of the heap's streams is capturing a graph. Waiting for the whole
    /// device is not possible then.
    pub fn is_any_capturing(&self, source: &mut dyn MemorySource) -> Result<bool, SourceError> {
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
            if source.is_capturing(self.of_slot(slot))? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the frees that no wait can complete now. A stream counts as capturing if the query
    /// fails.
    pub fn stuck(&mut self, source: &mut dyn MemorySource) -> Stuck {
        self.learn(source);
        let mut stuck = Stuck::default();
        let is_pending = |slot: &usize| self.streams[*slot].fenced() < self.streams[*slot].freed;
        let pending = || self.active.iter().copied().chain(self.orphans).filter(is_pending);
        for slot in pending().filter(|slot| !self.streams[*slot].retired) {
            let state = &self.streams[slot];
            // A transient stream cannot be queried. Its frees without a fence were made during a
            // capture.
            if state.transient || source.is_capturing(self.of_slot(slot)).unwrap_or(true) {
                stuck.add(slot, state.fenced());
            }
        }
        // These frees are completed when the device's work is. No wait for the device is possible
        // during a capture.
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
        for &slot in self.active.iter().chain(&self.orphans) {
            let state = &self.streams[slot];
            if state.reached < state.freed {
                unreached.add(slot, state.reached);
            }
        }
        unreached
    }

    /// Returns the newest fence of every stream with frees in flight. A capturing stream may have
    /// none.
    pub fn pending(&mut self, source: &mut dyn MemorySource) -> Result<Vec<Fence>, SourceError> {
        let mut fences = Vec::new();
        self.learn(source);
        together(source, |source| {
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

    /// Retires the streams that the program dropped: fences all their work and drops their guards.
    /// A stream that cannot be fenced now is kept for the next call.
    fn retire_abandoned(&mut self, source: &mut dyn MemorySource) {
        for at in 0..self.active.len() {
            let slot = self.active[at];
            let state = &mut self.streams[slot];
            if state.guard.as_ref().is_some_and(|guard| guard.is_abandoned()) {
                let _ = self.retire_slot(slot, source);
            }
        }
    }

    fn retire_slot(
        &mut self,
        slot: usize,
        source: &mut dyn MemorySource,
    ) -> Result<(), SourceError> {
        if let Some(moments) = &self.moments {
            // Before the guard is dropped, which knows the progress.
            self.streams[slot].learn(moments, source);
        }
        if !self.streams[slot].transient {
            // Counted as one more free, so that blocks that are live now come after it.
            self.streams[slot].freed += 1;
            self.record(slot, source)?;
        }
        let state = &mut self.streams[slot];
        state.retired = true;
        state.guard = None;
        self.slots.remove(&state.id);
        self.ended.push(state.id);
        Ok(())
    }

    /// Returns `true` if the stream ended unannounced. No fence covers its last work, so its blocks
    /// must not follow the stream that uses its slot now or later.
    #[inline]
    fn is_orphaned(&self, stream: StreamRef) -> bool {
        let state = &self.streams[stream.slot()];
        state.transient && (state.retired || state.turn != stream.turn)
    }

    /// Returns the stream for frees on streams that can be named no more. These are completed when
    /// all work of the device is.
    pub fn orphanage(&mut self) -> StreamRef {
        let slot = *self.orphans.get_or_insert_with(|| {
            let state = StreamState { retired: true, transient: true, ..Default::default() };
            self.streams.push(state);
            self.streams.len() - 1
        });
        self.of_slot(slot)
    }

    #[inline]
    fn of_slot(&self, slot: usize) -> StreamRef {
        let StreamState { turn, raw, .. } = self.streams[slot];
        StreamRef { slot: slot as u32, turn, raw }
    }

    fn after(&self, waiter: StreamRef, on: u32) -> u64 {
        self.streams[waiter.slot()].after.get(&on).copied().unwrap_or(0)
    }

    /// Returns the oldest fence that covers `ticket`, with the last free that it covers.
    fn fence(
        &mut self,
        ticket: Ticket,
        source: &mut dyn MemorySource,
    ) -> Result<(u64, Fence), SourceError> {
        let slot = ticket.slot();
        if self.streams[slot].fenced() < ticket.number {
            self.fence_all(slot, source)?;
        }
        let covering =
            self.streams[slot].fences.iter().find(|(number, _)| *number >= ticket.number);
        covering.copied().ok_or(SourceError::StreamUnusable)
    }

    fn fence_all(&mut self, slot: usize, source: &mut dyn MemorySource) -> Result<(), SourceError> {
        let state = &self.streams[slot];
        if state.retired || state.transient {
            return Ok(());
        }
        match self.record(slot, source) {
            // Frees of a capturing stream stay in flight, and are fenced after the capture.
            Err(SourceError::Capturing) => Ok(()),
            recorded => recorded,
        }
    }

    /// Fences all frees of a stream, with one more fence or by recording the newest one again.
    fn record(&mut self, slot: usize, source: &mut dyn MemorySource) -> Result<(), SourceError> {
        let state = &mut self.streams[slot];
        if state.fenced() >= state.freed {
            return Ok(());
        }
        if state.fences.len() >= MOST_FENCES {
            state.forget_reached(source);
        }
        let stream = StreamRef { slot: slot as u32, turn: state.turn, raw: state.raw };
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

/// Makes driver calls in one group: entering and leaving the driver takes as long as one call.
fn together<R>(source: &mut dyn MemorySource, calls: impl FnOnce(&mut dyn MemorySource) -> R) -> R {
    struct Held<'a>(&'a mut dyn MemorySource);

    impl Drop for Held<'_> {
        fn drop(&mut self) {
            self.0.let_go();
        }
    }

    source.hold();
    calls(&mut *Held(source).0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Model, Unannounced};

    /// Returns a transient stream and an ordinary one.
    fn streams(order: &mut Order, model: &mut Model) -> (StreamRef, StreamRef) {
        let transient = order.stream(1, StreamHandle(10), Unannounced::guard, model);
        (transient, order.stream(2, StreamHandle(20), || None, model))
    }

    #[test]
    fn a_fence_at_every_free_does_not_mean_as_many_fences() {
        for immediate in [true, false] {
            let (mut order, mut model) = (Order::default(), Model::new(1 << 30));
            model.immediate = immediate;
            let (stream, other) = streams(&mut order, &mut model);
            let mut freed = Vec::new();
            for _ in 0..1000 {
                let clock = model.work(stream);
                let before = model.calls();
                freed.push((order.freed(stream, &mut model), clock));
                assert!(model.calls() - before < 4, "a few calls, whatever was freed before");
                assert!(model.fences() <= MOST_FENCES, "{}", model.fences());
            }
            for at in [999, 0, 500] {
                let (ticket, clock) = &freed[at];
                order.order_after(other, *ticket, &mut model).unwrap();
                assert!(model.is_ordered(stream.slot(), clock, other), "{immediate}: {at}");
            }
            model.complete(stream.slot());
            order.poll(&mut model).unwrap();
            assert!(freed.iter().all(|(ticket, _)| order.is_fence_reached(*ticket)));
            assert_eq!(model.fences(), 0);
        }
    }

    #[test]
    fn a_stream_that_others_follow_keeps_few_fences() {
        let (mut order, mut model) = (Order::default(), Model::new(1 << 30));
        model.immediate = false;
        let (_, stream) = streams(&mut order, &mut model);
        let other = order.stream(3, StreamHandle(30), || None, &mut model);
        for _ in 0..1000 {
            let clock = model.work(stream);
            let ticket = order.freed(stream, &mut model);
            order.order_after(other, ticket, &mut model).unwrap();
            assert!(model.is_ordered(stream.slot(), &clock, other));
            assert!(model.fences() <= MOST_FENCES, "{}", model.fences());
        }
    }

    #[test]
    fn a_fence_that_fails_late_is_made_up_for_by_the_next() {
        let (mut order, mut model) = (Order::default(), Model::new(1 << 30));
        model.immediate = false;
        let (stream, other) = streams(&mut order, &mut model);
        let mut free = |model: &mut Model, failing: Option<u64>| {
            let clock = model.work(stream);
            model.fail_call = failing.map(|nth| model.calls() + nth);
            let ticket = order.freed(stream, model);
            model.fail_call = None;
            (ticket, clock)
        };
        (0..100).for_each(|_| drop(free(&mut model, None)));
        // The query, and the recording.
        let late = [free(&mut model, Some(1)), free(&mut model, Some(2))];
        let last = free(&mut model, None);
        for (ticket, clock) in late.iter().chain([&last]) {
            order.order_after(other, *ticket, &mut model).unwrap();
            assert!(model.is_ordered(stream.slot(), clock, other));
        }
    }
}
