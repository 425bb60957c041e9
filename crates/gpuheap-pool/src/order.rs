//! In which order streams may reuse each other's blocks.
//!
//! Every free gets a [`Ticket`]: its stream and a number that counts that stream's frees. A block
//! may be handed out again
//!
//! * on its own stream at once, because the stream runs in order;
//! * on another stream once that stream waits for a fence recorded at or after the free;
//! * anywhere once such a fence is known to be reached.
//!
//! A heap keeps a stream alive until what was freed on it is fenced. It cannot keep a foreign one, of
//! whose end it is told before.
//!
//! Fences are recorded when somebody else wants a block, not at every free: recording one costs
//! 140 ns on an H200, and most blocks are reused by their own stream. So a wait may cover work that
//! the stream was given after the free. Only what is freed on a stream that can be named at no other
//! time is fenced at once: one that may end unannounced, or a thread's own default stream.
//!
//! A stream keeps few fences. Where it has many, some that are reached are forgotten; where none is,
//! the newest is recorded again and covers the later frees too. Whoever waits for it already waits for
//! the point that it had.
//!
//! Waits of the program itself are learnt of without a fence ([`Moments`]): each free is noted with
//! its moment, and what was freed before a moment that is completed is over.
//!
//! A stream that captures a graph is not fenced, and does not wait: both would break the capture. What
//! is freed on it stays in flight for the others until the capture is over.

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::progress::Moments;
use crate::source::{Fence, MemorySource, SourceError};
use crate::stream::{StreamHandle, StreamRef, Ticket};
use crate::stuck::Stuck;

/// A heap's hold on a stream, which keeps the stream alive.
pub trait StreamGuard: Send {
    /// Returns `true` if the program holds the stream no more. A default stream is never abandoned;
    /// of a foreign one the program says so.
    fn is_abandoned(&self) -> bool;

    /// Returns `true` if somebody else made the stream and will end it.
    fn is_foreign(&self) -> bool;

    /// Returns `true` if the stream will end unannounced.
    fn is_unannounced(&self) -> bool;

    /// Returns `true` if the stream was retired, so that it may be gone.
    fn is_retired(&self) -> bool;

    /// Returns the known progress of its context's work.
    fn moments(&self) -> &Arc<Moments>;

    /// The moment before which its work is known to be completed.
    fn completed(&self) -> u64;

    /// Makes the stream refuse all work from now on, without touching its handle.
    fn refuse_work(&self);

    /// Notes that all work of a stream that refuses more is completed.
    fn complete(&self);
}

/// What is known of the order of a heap's streams.
#[derive(Default)]
pub struct Order {
    streams: Vec<StreamState>,
    /// The slot that was last asked for: most often it is asked for again.
    last: u32,
    /// The slots of which something may still be learnt: not those of streams that ended and whose
    /// frees are over.
    active: Vec<usize>,
    /// Of these the one that was asked about last in turns.
    turn: usize,
    /// How many of these were left when it was last asked how far they have got.
    left: usize,
    /// The slots of the others, for new streams. Their numbers go on, so that what is known of old
    /// tickets stays true; a block of the old stream that is freed later follows the new one, which
    /// is later than it need be and never too early.
    spare: Vec<usize>,
    /// The slot of what is freed on streams that ended unannounced and whose slot another one has.
    orphans: Option<usize>,
    /// Knowledge from the program's own waits, and how much of it is noted here.
    moments: Option<Arc<Moments>>,
    learnt: u64,
    /// `true` if all work before a free that is made now is completed.
    frees_completed: bool,
    /// No stream is made to wait for another one now.
    refuses_waits: bool,
    /// Slots of the streams that are not retired, by the driver's id.
    slots: FxHashMap<u64, u32>,
    /// The driver's ids of streams that were retired, for whoever keeps something by stream.
    ended: Vec<u64>,
}

/// So many fences of a stream are kept: each is an event of the driver's.
const MOST_FENCES: usize = 32;

/// About so many streams a request may ask.
const FEW: usize = 16;

/// So many streams may be active before those that ended are looked for.
const CROWD: usize = 32;

#[derive(Default)]
struct StreamState {
    id: u64,
    /// How many streams had the slot before.
    turn: u32,
    raw: StreamHandle,
    /// Keeps the stream alive while frees on it may have to be fenced.
    guard: Option<Box<dyn StreamGuard>>,
    /// The program let go of the stream, or is about to end it; its last fence covers all its work.
    retired: bool,
    /// The stream may be named during its own calls alone: its frees are fenced at once.
    transient: bool,
    /// The number of the last free.
    freed: u64,
    /// Every free up to this number is known to be over.
    reached: u64,
    /// Fences not known to be reached, oldest first, each with the last free that it covers.
    fences: VecDeque<(u64, Fence)>,
    /// Moments of frees that are not known to be over, oldest first, each with its last free.
    moments: VecDeque<(u64, u64)>,
    /// Frees of other streams, by slot, that this stream already waits for.
    after: FxHashMap<u32, u64>,
}

/// Moments of one stream that are kept apart. Of more the oldest counts as the one after it: the
/// program waits for the stream so often only if nothing is ever asked of the heap in between.
const MOST_MOMENTS: usize = 8;

impl StreamState {
    /// Numbers a free that is made now.
    #[inline]
    fn count_free(&mut self, moments: Option<&Arc<Moments>>) -> u64 {
        self.freed += 1;
        self.note_moment(moments);
        self.freed
    }

    /// Notes the moment of the last free, which is now.
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

    /// Notes what the program learnt of the stream by its own waits.
    ///
    /// Of a stream that was retired only a wait for the whole device says something.
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

    fn fenced(&self) -> u64 {
        self.fences.back().map_or(self.reached, |(number, _)| *number)
    }

    /// Forgets the two oldest fences, if they are reached: more than are made meanwhile. One that cannot
    /// be asked about counts as not reached.
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
    /// The stream with the driver's `id`, if it was registered and did not end.
    pub fn known(&self, id: u64) -> Option<StreamRef> {
        let slot = *self.slots.get(&id)?;
        Some(self.of_slot(slot as usize))
    }

    /// Returns `true` if what is freed on a stream is fenced at once, because it can be named at no
    /// other time.
    #[inline]
    pub fn is_transient(&self, stream: StreamRef) -> bool {
        self.streams[stream.slot()].transient
    }

    /// The driver's id of a stream that was retired; each is said once.
    #[inline]
    pub fn next_ended(&mut self) -> Option<u64> {
        self.ended.pop()
    }

    /// The stream with the driver's `id`, registered at its first use with what keeps it alive.
    pub fn stream(
        &mut self,
        id: u64,
        raw: StreamHandle,
        guard: impl FnOnce() -> Option<Box<dyn StreamGuard>>,
        source: &mut dyn MemorySource,
    ) -> StreamRef {
        let last = self.streams.get(self.last as usize);
        if let Some(last) = last.filter(|state| state.id == id && !state.retired) {
            return StreamRef { slot: self.last, turn: last.turn, raw };
        }
        if let Some(&slot) = self.slots.get(&id) {
            self.last = slot;
            return StreamRef { slot, turn: self.streams[slot as usize].turn, raw };
        }
        // A program that makes streams also ends them.
        self.retire_abandoned(source);
        if self.active.len() >= CROWD.max(2 * self.left) {
            // For their places alone: where it fails they are asked again when there are more.
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
        // A transient stream must not inherit blocks that are freed when it cannot be named: a
        // per-thread default stream none, an unannounced one those of its like, which are freed by
        // now.
        let spare =
            self.spare.iter().rposition(|slot| self.streams[*slot].transient == unannounced);
        let is_retired = guard.as_ref().is_some_and(|guard| guard.is_retired());
        let spare = spare.filter(|_| raw != StreamHandle::PER_THREAD && !is_retired);
        let slot = spare.map(|at| self.spare.swap_remove(at)).unwrap_or_else(|| {
            self.streams.push(StreamState::default());
            self.streams.len() - 1
        });
        let StreamState { freed, reached, turn, .. } = self.streams[slot];
        let turn = turn.wrapping_add(1);
        // One that was retired meanwhile may be gone, so its handle is left alone. Nothing is known of
        // its work: what is freed on it is for nobody before the device was waited for.
        let retired = is_retired;
        let guard = guard.filter(|_| !retired);
        let transient = unannounced || retired || raw == StreamHandle::PER_THREAD;
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

    /// Notes a free on `stream` and numbers it.
    ///
    /// Only a transient stream makes driver calls here, a few: it cannot be named later, so its fence is
    /// recorded at once. Where that fails, the stream's next free covers this one too. A stream that
    /// ended has no work after its last fence, which covers the free; of a transient one that is not
    /// known, so nothing does.
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

    /// Numbers a free on a stream that ended, or that may do so unannounced.
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

    /// Says whether the work before what is freed from now on is known to be completed. Tickets then
    /// have the number zero, which every stream has reached.
    #[inline]
    pub fn frees_as_completed(&mut self, completed: bool) {
        self.frees_completed = completed;
    }

    /// Says whether [`order_after`](Order::order_after) refuses to make a stream wait, as it does for a
    /// stream that captures a graph: there is memory to spare.
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

    /// Notes what the program learnt by its own waits since this was called last. Makes no driver call.
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

    /// Returns `true` if the block of `ticket` may be used on `stream` as things are.
    pub fn is_usable_on(&self, ticket: Ticket, stream: StreamRef) -> bool {
        ticket.slot == stream.slot
            || self.is_fence_reached(ticket)
            || self.after(stream, ticket.slot) >= ticket.number
    }

    /// Fences the stream with the driver's `id`, all its work covered, and lets go of it, because the
    /// program is about to end it. Where that fails it is as it was.
    pub fn retire(&mut self, id: u64, source: &mut dyn MemorySource) -> Result<(), SourceError> {
        match self.slots.get(&id) {
            Some(&slot) => self.retire_slot(slot as usize, source),
            None => Ok(()),
        }
    }

    /// The heap's holds on the foreign streams that it knows.
    pub fn foreign(&self) -> impl Iterator<Item = &dyn StreamGuard> {
        let guards = self.active.iter().filter_map(|&slot| self.streams[slot].guard.as_deref());
        guards.filter(|guard| guard.is_foreign())
    }

    /// The driver's ids of these streams.
    pub fn foreign_ids(&self) -> impl Iterator<Item = u64> {
        let states = self.active.iter().map(|&slot| &self.streams[slot]);
        let foreign = |guard: &dyn StreamGuard| guard.is_foreign();
        states
            .filter(move |state| state.guard.as_deref().is_some_and(foreign))
            .map(|state| state.id)
    }

    /// Lets go of all foreign streams without touching them. What is freed on them later counts as
    /// freed now: they refuse more work. Unless that is `completed`, it is for nobody before the device
    /// was waited for.
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

    /// The stream that a block's stream stands for now, if any: itself, the one that has its slot
    /// since, or none where nothing can be put on it any more.
    #[inline]
    pub fn current(&self, stream: StreamRef) -> Option<StreamRef> {
        let state = &self.streams[stream.slot()];
        (!state.retired && !self.is_orphaned(stream)).then(|| self.of_slot(stream.slot()))
    }

    /// The same after the call that the stream was named for.
    #[inline]
    pub fn current_later(&self, stream: StreamRef) -> Option<StreamRef> {
        self.current(stream).filter(|stream| !self.streams[stream.slot()].transient)
    }

    /// How many places for streams there are.
    #[cfg(any(test, feature = "testing"))]
    pub fn places(&self) -> usize {
        self.streams.len()
    }

    /// Returns `true` if something was freed on a retired stream that no fence covers: a wait for the
    /// whole device is needed before it can be handed out.
    pub fn needs_device(&self) -> bool {
        self.active.iter().chain(&self.orphans).any(|&slot| {
            let state = &self.streams[slot];
            state.retired && state.fenced() < state.freed
        })
    }

    /// All work of the device is over, so every free is.
    pub fn all_over(&mut self, source: &mut dyn MemorySource) {
        for state in &mut self.streams {
            state.reached = state.freed;
            for (_, fence) in state.fences.drain(..) {
                source.forget(fence);
            }
        }
    }

    /// Returns `true` if the work before `ticket` is known to be over.
    pub fn is_fence_reached(&self, ticket: Ticket) -> bool {
        self.streams[ticket.slot()].reached >= ticket.number
    }

    /// Returns `true` if another stream could wait for the work before `ticket` as things are, or
    /// need not.
    pub fn is_fenced(&self, ticket: Ticket) -> bool {
        self.streams[ticket.slot()].fenced() >= ticket.number
    }

    /// The last free of `stream` that is known to be over.
    pub fn reached(&self, slot: usize) -> u64 {
        self.streams[slot].reached
    }

    /// Makes `stream` wait for the work before `ticket`, if it does not already; the host does not
    /// wait.
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
            // No more can be done with this stream now than with one that is gone.
            SourceError::Capturing => SourceError::StreamUnusable,
            error => error,
        })?;
        self.streams[stream.slot()].after.insert(ticket.slot, number);
        Ok(())
    }

    /// Makes `stream` wait for all that `other` was given so far; the host does not wait.
    pub fn follow(
        &mut self,
        stream: StreamRef,
        other: StreamRef,
        source: &mut dyn MemorySource,
    ) -> Result<(), SourceError> {
        if stream.slot == other.slot && !self.is_orphaned(other) {
            return Ok(());
        }
        // As if a block were freed there now.
        let ticket = self.freed(other, source);
        self.order_after(stream, ticket, source)
    }

    /// A fence behind all that `stream` was given so far; `None` if nothing of it is left to wait for.
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

    /// Asks the driver how far every stream with frees has got, recording a fence where there is
    /// none yet.
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

    /// The same of the stream of `ticket` and a few others, in turns: what one request may cost
    /// where there are thousands. All of them where there are no more than these.
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

    /// Returns `true` if there are so few streams that each request may ask about all of them.
    #[inline]
    pub fn is_few(&self) -> bool {
        self.active.len() <= FEW
    }

    /// Asks how far one stream has got.
    fn ask(&mut self, slot: usize, source: &mut dyn MemorySource) -> Result<(), SourceError> {
        if self.streams[slot].reached < self.streams[slot].freed {
            self.fence_all(slot, source)?;
            // The newest answers for all, which is the usual case; else from the oldest on.
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

    /// Returns `true` if one of its streams is capturing a graph: work of the whole device cannot
    /// be waited for then.
    pub fn is_any_capturing(&self, source: &mut dyn MemorySource) -> Result<bool, SourceError> {
        for &slot in &self.active {
            let state = &self.streams[slot];
            // One that may have ended cannot be asked: a real driver crashes by its handle.
            if state.retired || state.transient {
                continue;
            }
            if source.is_capturing(self.of_slot(slot))? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The frees that no wait can end now. A stream that cannot be asked whether it captures counts as
    /// one that does.
    pub fn stuck(&mut self, source: &mut dyn MemorySource) -> Stuck {
        self.learn(source);
        let mut stuck = Stuck::default();
        let is_pending = |slot: &usize| self.streams[*slot].fenced() < self.streams[*slot].freed;
        let pending = || self.active.iter().copied().chain(self.orphans).filter(is_pending);
        for slot in pending().filter(|slot| !self.streams[*slot].retired) {
            let state = &self.streams[slot];
            // A transient stream cannot be asked. What it has no fence for was freed in a capture.
            if state.transient || source.is_capturing(self.of_slot(slot)).unwrap_or(true) {
                stuck.add(slot, state.fenced());
            }
        }
        // These are over when the work of the device is, which no capture lets anybody wait for.
        let mut ended = pending().filter(|slot| self.streams[*slot].retired).peekable();
        if ended.peek().is_some() && self.is_any_capturing(source).unwrap_or(true) {
            ended.for_each(|slot| stuck.add(slot, self.streams[slot].fenced()));
        }
        stuck
    }

    /// The frees that are not known to be over: what was freed is for other streams only after a wait.
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

    /// The newest fence of every stream whose frees are not all known to be over. One that is
    /// capturing a graph may have none.
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

    /// Fences the streams that the program let go of, all their work covered, and lets go of them
    /// too. One that cannot be fenced now is kept for the next time.
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
        if !self.streams[slot].transient {
            // As if one more block were freed: blocks that are live now come after that.
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

    /// Returns `true` if a stream ended unannounced. Its last work is covered by nothing, so that its
    /// blocks must not follow the stream that has its slot now or gets it later.
    fn is_orphaned(&self, stream: StreamRef) -> bool {
        let state = &self.streams[stream.slot()];
        state.transient && (state.retired || state.turn != stream.turn)
    }

    /// The slot for frees of such streams: they are over when all work of the device is.
    fn orphanage(&mut self) -> StreamRef {
        let slot = *self.orphans.get_or_insert_with(|| {
            let state = StreamState { retired: true, transient: true, ..Default::default() };
            self.streams.push(state);
            self.streams.len() - 1
        });
        self.of_slot(slot)
    }

    fn of_slot(&self, slot: usize) -> StreamRef {
        let StreamState { turn, raw, .. } = self.streams[slot];
        StreamRef { slot: slot as u32, turn, raw }
    }

    fn after(&self, waiter: StreamRef, on: u32) -> u64 {
        self.streams[waiter.slot()].after.get(&on).copied().unwrap_or(0)
    }

    /// The oldest fence that covers `ticket`, with the last free that it covers.
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
            // Its frees stay in flight, and are fenced when the capture is over.
            Err(SourceError::Capturing) => Ok(()),
            recorded => recorded,
        }
    }

    /// Fences all frees of a stream, by one fence more or by a later point of the newest.
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

/// Makes calls that belong together: the way into the driver and out of it takes as long as one of
/// them.
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
    use crate::testing::Model;

    /// A stream that can be named during its own calls alone, and an ordinary one.
    fn streams(order: &mut Order, model: &mut Model) -> (StreamRef, StreamRef) {
        let transient = order.stream(1, StreamHandle::PER_THREAD, || None, model);
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
        // The question, and the record.
        let late = [free(&mut model, Some(1)), free(&mut model, Some(2))];
        let last = free(&mut model, None);
        for (ticket, clock) in late.iter().chain([&last]) {
            order.order_after(other, *ticket, &mut model).unwrap();
            assert!(model.is_ordered(stream.slot(), clock, other));
        }
    }
}
