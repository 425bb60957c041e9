//! Gives each stream a slot at its first use, and reuses the slot after the stream's end.

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::progress::Moments;
use crate::source::{Fence, MemorySource, SourceResult};
use crate::stream::{StreamHandle, StreamRef};

/// Guard that keeps a stream alive for a heap.
pub trait StreamGuard: Send {
    /// Returns `true` if the program has dropped the stream. The legacy default stream is never
    /// abandoned. A thread's own default stream is abandoned once the thread has ended and the
    /// program has dropped the stream. A foreign stream is abandoned when the program announces its
    /// end.
    fn is_abandoned(&self) -> bool;

    /// Returns `true` if the stream is foreign: made, and later destroyed, by other code.
    fn is_foreign(&self) -> bool;

    /// Returns `true` if the stream may end without an announcement by the program.
    fn is_unannounced(&self) -> bool;

    /// Returns `true` if the stream was retired. Its handle may then be stale.
    fn is_retired(&self) -> bool;

    /// Returns the known progress of the work in the stream's context.
    fn moments(&self) -> &Arc<Moments>;

    /// Returns the moment before which the stream's work is known to be completed.
    fn completed(&self) -> u64;

    /// Makes the stream refuse all work from now on, without a driver call on its handle.
    fn refuse_work(&self);

    /// Notes that all work of the stream is completed. The stream already refuses new work.
    fn complete(&self);

    /// Returns `true` if the stream was first seen in a capture of a graph and is identified by
    /// that capture. Memory freed on the stream is kept for the graph, and no wait completes these
    /// frees.
    fn is_of_capture(&self) -> bool;

    /// Returns `true` if the capture in which the stream was first seen may still be active. The
    /// caller has checked that the stream [is of a capture](StreamGuard::is_of_capture).
    fn may_capture(&self) -> bool;
}

/// Stream order of a heap. It records which frees of each stream are known to be completed.
#[derive(Default)]
pub struct Order {
    pub(super) streams: Vec<Slot>,
    /// Slot of the stream that was looked up last. Most look-ups are of the same stream.
    pub(super) last: u32,
    /// Slots of the streams that are polled. A stream is removed once it has ended and all its
    /// frees are completed.
    pub(super) active: Vec<usize>,
    /// Position in `active` of the stream that was polled last. Streams are polled in rotation.
    pub(super) polled: usize,
    /// Number of streams that were still active after the last poll.
    pub(super) left: usize,
    /// Slots of ended streams, for reuse by new streams. The numbers of frees in a slot continue,
    /// so old tickets stay valid. If a block of the old stream is freed later, the free counts as a
    /// free on the new stream. Then the block may be reused later than necessary, never too early.
    pub(super) spare: Vec<usize>,
    /// Slot for detached frees: frees on a transient stream that has ended, or may have ended.
    pub(super) detached: Option<usize>,
    /// Progress shown by the program's own waits.
    pub(super) moments: Option<Arc<Moments>>,
    /// Value of [`Moments::changes`] when progress was last copied from `moments` to `streams`. As
    /// long as the value stays the same, no progress is new.
    pub(super) noted_changes: u64,
    /// `true` while frees count as completed immediately.
    pub(super) frees_completed: bool,
    /// `true` while no stream may be made to wait for another stream.
    pub(super) refuses_waits: bool,
    /// Slots of the streams that are not retired, keyed by the driver's id of the stream.
    pub(super) slots: FxHashMap<u64, u32>,
    /// The driver's ids of retired streams, for callers that keep data for each stream.
    pub(super) ended: Vec<u64>,
}

/// If at least this many streams are active, a new stream triggers a poll for ended streams.
const MANY_ACTIVE: usize = 32;

/// Maximum number of [moments](Moments) that are kept for the frees of one stream. If there are
/// more, the oldest moment is dropped, and its frees count as made in the next moment.
const MOST_MOMENTS: usize = 8;

#[derive(Default)]
pub(super) struct Slot {
    pub(super) id: u64,
    /// Number of streams that used the slot before.
    pub(super) generation: u32,
    pub(super) raw: StreamHandle,
    /// Keeps the stream alive while frees on it may have to be fenced.
    pub(super) guard: Option<Box<dyn StreamGuard>>,
    /// `true` if the program dropped the stream or is about to end it. The stream's last fence
    /// covers all its work.
    pub(super) retired: bool,
    /// `true` if the stream's handle is valid only during the program's calls with it. Its frees
    /// are fenced immediately.
    pub(super) transient: bool,
    /// Number of the last free.
    pub(super) freed: u64,
    /// Number of the last free that is known to be completed. All frees before it are completed
    /// too.
    pub(super) reached: u64,
    /// Fences not known to be reached, oldest first. Each has the number of the last free that the
    /// fence covers.
    pub(super) fences: VecDeque<(u64, Fence)>,
    /// [Moments](Moments) in which frees were made on this stream, oldest first. Each has the
    /// number of the last free in that moment. A completed wait removes the moments before it.
    pub(super) moments: VecDeque<(u64, u64)>,
    /// For each other stream, by slot: the number of the last free there that this stream already
    /// waits for. The stream then also waits for all frees before it.
    pub(super) after: FxHashMap<u32, u64>,
}

impl Slot {
    /// Numbers a free that is made now.
    #[inline]
    pub(super) fn count_free(&mut self, moments: Option<&Arc<Moments>>) -> u64 {
        self.freed += 1;
        self.note_moment(moments);
        self.freed
    }

    /// Notes that the last free was made in the current [moment](Moments::now).
    #[inline]
    pub(super) fn note_moment(&mut self, moments: Option<&Arc<Moments>>) {
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

    /// Notes the stream's progress, as shown by the program's own waits. For a retired stream, only
    /// a wait for the whole device shows progress.
    pub(super) fn note_progress(&mut self, moments: &Moments, source: &mut dyn MemorySource) {
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

    /// Returns `true` if the stream is of a capture: memory freed on it is kept for the graph.
    pub(super) fn is_of_capture(&self) -> bool {
        self.guard.as_ref().is_some_and(|guard| guard.is_of_capture())
    }

    /// Returns `true` if the stream is transient and the call that used it has ended.
    #[inline]
    fn has_passed(&self) -> bool {
        self.transient && self.guard.as_ref().is_some_and(|guard| guard.is_abandoned())
    }

    pub(super) fn fenced(&self) -> u64 {
        self.fences.back().map_or(self.reached, |(number, _)| *number)
    }

    /// Forgets the older half of the fences if all of them are reached. A stream reaches its fences
    /// in order, so one query suffices. A fence whose query fails counts as not reached.
    pub(super) fn forget_reached(&mut self, source: &mut dyn MemorySource) {
        let last = self.fences.len() / 2;
        let Some((number, fence)) = self.fences.get(last).copied() else { return };
        if matches!(source.is_fence_reached(fence), Ok(true)) {
            self.fences.drain(..=last).for_each(|(_, fence)| source.forget(fence));
            self.reached = number;
        }
    }
}

impl Order {
    /// Returns the stream with the driver's `id`. At the first use of a stream, registers it with
    /// the guard that keeps it alive.
    pub fn stream(
        &mut self,
        id: u64,
        raw: StreamHandle,
        guard: impl FnOnce() -> Option<Box<dyn StreamGuard>>,
        source: &mut dyn MemorySource,
    ) -> StreamRef {
        let last = self.streams.get(self.last as usize);
        let is_named = |state: &&Slot| state.id == id && !state.retired;
        if let Some(last) = last.filter(|state| is_named(state) && !state.has_passed()) {
            return StreamRef { slot: self.last, generation: last.generation, raw };
        }
        if let Some(&slot) = self.slots.get(&id) {
            if !self.streams[slot as usize].has_passed() {
                self.last = slot;
                return StreamRef { slot, generation: self.streams[slot as usize].generation, raw };
            }
            // Never fails, because retiring a transient stream makes no driver call.
            let _ = self.retire_slot(slot as usize, source);
        }
        // Programs that make new streams also end streams, so ended streams are retired here.
        self.retire_abandoned(source);
        if self.active.len() >= MANY_ACTIVE.max(2 * self.left) {
            // This poll only frees the slots of ended streams, so a failure is ignored. The next
            // poll follows when twice as many streams are active.
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
        // A transient stream takes only the slot of another transient stream. If it took an
        // ordinary stream's slot, a late free of the ordinary stream's blocks would use the
        // transient stream's handle. That handle may be invalid by then.
        let spare =
            self.spare.iter().rposition(|slot| self.streams[*slot].transient == unannounced);
        let is_retired = guard.as_ref().is_some_and(|guard| guard.is_retired());
        let spare = spare.filter(|_| !is_retired);
        let slot = spare.map(|at| self.spare.swap_remove(at)).unwrap_or_else(|| {
            self.streams.push(Slot::default());
            self.streams.len() - 1
        });
        let Slot { freed, reached, generation, .. } = self.streams[slot];
        let generation = generation.wrapping_add(1);
        // If the stream is already retired, it may no longer exist, so its handle is not used. Its
        // progress is unknown: memory freed on the stream is reused only after a wait for the whole
        // device.
        let retired = is_retired;
        let guard = guard.filter(|_| !retired);
        let transient = unannounced || retired;
        self.streams[slot] = Slot {
            id,
            raw,
            guard,
            retired,
            transient,
            freed,
            reached,
            generation,
            ..Default::default()
        };
        self.active.push(slot);
        if !retired {
            self.slots.insert(id, slot as u32);
        }
        StreamRef { slot: slot as u32, generation, raw }
    }

    /// Returns the stream with the driver's `id`; `None` if it is not registered or has ended.
    pub fn registered(&self, id: u64) -> Option<StreamRef> {
        let slot = *self.slots.get(&id)?;
        Some(self.stream_in(slot as usize))
    }

    /// Removes and returns the driver's id of a retired stream.
    #[inline]
    pub fn take_ended_id(&mut self) -> Option<u64> {
        self.ended.pop()
    }

    /// Returns `true` if frees on the stream are fenced immediately, because its handle may be
    /// invalid later.
    #[inline]
    pub fn is_transient(&self, stream: StreamRef) -> bool {
        self.streams[stream.slot()].transient
    }

    /// Returns `true` if the stream is of a capture: memory freed on it is kept for the graph.
    pub fn is_of_capture(&self, stream: StreamRef) -> bool {
        self.streams[stream.slot()].is_of_capture()
    }

    /// Returns the guard of each foreign stream (made by another library) that the heap knows.
    pub fn foreign_guards(&self) -> impl Iterator<Item = &dyn StreamGuard> {
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

    /// Retires the stream with the driver's `id` before the program ends it: fences all its work
    /// and drops the guard that keeps the stream alive. If fencing fails, nothing changes.
    pub fn retire(&mut self, id: u64, source: &mut dyn MemorySource) -> SourceResult {
        match self.slots.get(&id) {
            Some(&slot) => self.retire_slot(slot as usize, source),
            None => Ok(()),
        }
    }

    /// Retires all foreign streams without a driver call on their handles. The streams refuse new
    /// work, so a later free on one of them counts as made now. If the streams' work is not
    /// `completed`, memory freed on them is reused only after a wait for the whole device.
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

    /// Retires the streams that the program dropped: fences all their work and drops their guards.
    /// A stream that cannot be fenced now is kept for the next call.
    pub(super) fn retire_abandoned(&mut self, source: &mut dyn MemorySource) {
        for at in 0..self.active.len() {
            let slot = self.active[at];
            let state = &mut self.streams[slot];
            if state.guard.as_ref().is_some_and(|guard| guard.is_abandoned()) {
                let _ = self.retire_slot(slot, source);
            }
        }
    }

    fn retire_slot(&mut self, slot: usize, source: &mut dyn MemorySource) -> SourceResult {
        if let Some(moments) = &self.moments {
            // The guard has the stream's progress, so the progress is noted before the guard is
            // dropped.
            self.streams[slot].note_progress(moments, source);
        }
        if !self.streams[slot].transient {
            // The stream's end gets the number of a free, and a fence. Blocks that are live now are
            // freed later, with this number or a higher one. So a wait for such a free covers the
            // stream's last work.
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

    /// Returns the stream that has the slot of `stream` now: `stream` itself, or a newer stream.
    /// Returns `None` if that stream takes no work, or if `stream` was transient and has ended.
    #[inline]
    pub fn current(&self, stream: StreamRef) -> Option<StreamRef> {
        let state = &self.streams[stream.slot()];
        (!state.retired && !self.is_detached(stream)).then(|| self.stream_in(stream.slot()))
    }

    /// Returns [`current`](Order::current), or `None` if that stream is transient. Its handle is
    /// valid only during the program's call with it, and that call may have ended.
    #[inline]
    pub fn current_later(&self, stream: StreamRef) -> Option<StreamRef> {
        self.current(stream).filter(|stream| !self.streams[stream.slot()].transient)
    }

    /// Returns the number of slots for streams.
    #[cfg(any(test, feature = "testing"))]
    pub fn slot_count(&self) -> usize {
        self.streams.len()
    }

    /// Returns `true` if the stream was transient and has ended. No fence covers its last work, not
    /// even a fence of a newer stream in its slot. Frees of its blocks therefore get their numbers
    /// from a [separate stream](Order::detached_stream).
    #[inline]
    pub(super) fn is_detached(&self, stream: StreamRef) -> bool {
        let state = &self.streams[stream.slot()];
        state.transient && (state.retired || state.generation != stream.generation)
    }

    /// Returns the separate stream that counts the frees made on ended transient streams. These
    /// frees are completed once all work of the device is completed.
    pub fn detached_stream(&mut self) -> StreamRef {
        let slot = *self.detached.get_or_insert_with(|| {
            let state = Slot { retired: true, transient: true, ..Default::default() };
            self.streams.push(state);
            self.streams.len() - 1
        });
        self.stream_in(slot)
    }

    #[inline]
    pub(super) fn stream_in(&self, slot: usize) -> StreamRef {
        let Slot { generation, raw, .. } = self.streams[slot];
        StreamRef { slot: slot as u32, generation, raw }
    }
}
