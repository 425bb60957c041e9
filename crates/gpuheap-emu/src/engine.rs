//! Engine that does queued work. Decides which work runs, in which order, and how waits proceed.

use gpuheap_driver::CUresult;
use parking_lot::MutexGuard;

use crate::Schedule;
use crate::emulator::{Call, IN_CALLBACK, nanoseconds};
use crate::state::State;
use crate::state::stream::{Op, OpRef, StreamKind, Work};
use crate::state::user_object::{Callback, HostFunction};

/// Virtual time of one piece of work, in nanoseconds, except under [`Schedule::Lag`].
const WORK_TIME: u64 = 1_000;
/// Virtual time that a query takes under [`Schedule::Lag`] if the work is not done, in nanoseconds.
const QUERY_TIME: u64 = 100;

impl State {
    pub(crate) fn is_done(&self, op: OpRef) -> bool {
        self.pending == 0 || self.streams.at(op.stream).is_none_or(|stream| stream.is_done(op.id))
    }

    /// Returns the last queued work of a stream; `None` if the stream has no queued work.
    pub(crate) fn last_op(&self, stream: u32) -> Option<OpRef> {
        let last = self.streams.at(stream)?.queue.back()?;
        Some(OpRef { stream, id: last.id })
    }

    /// Returns the work that must be done before a wait for a stream ends. This is the stream's
    /// last work. For the legacy default stream, it is also the last work of each blocking stream.
    pub(crate) fn last_work(&self, stream: u32) -> Vec<OpRef> {
        if self.pending == 0 {
            return Vec::new();
        }
        let mut tail: Vec<OpRef> = self.last_op(stream).into_iter().collect();
        if self.streams.at(stream).is_some_and(|found| found.kind == StreamKind::Legacy) {
            tail.extend(self.legacy_order(stream));
        }
        tail
    }

    /// Returns the last work of each stream of a context. Skips streams that have no queued work.
    pub(crate) fn last_ops(&self, context: u32) -> Vec<OpRef> {
        self.active
            .iter()
            .filter(|stream| {
                self.streams.at(**stream).is_some_and(|found| found.context == context)
            })
            .filter_map(|stream| self.last_op(*stream))
            .collect()
    }

    /// Returns the work for which new work of `stream` must wait under the rule of the legacy
    /// default stream.
    fn legacy_order(&self, stream: u32) -> Vec<OpRef> {
        let Some(found) = self.streams.at(stream) else { return Vec::new() };
        let related =
            |other: u32| self.streams.at(other).is_some_and(|other| found.is_ordered_with(other));
        self.active
            .iter()
            .filter(|other| **other != stream && related(**other))
            .filter_map(|other| self.last_op(*other))
            .collect()
    }

    fn first_is_ready(&self, stream: u32) -> bool {
        self.streams.at(stream).is_some_and(|found| {
            !found.running
                && found.queue.front().is_some_and(|op| op.after.iter().all(|op| self.is_done(*op)))
        })
    }
}

impl Call<'_> {
    /// Appends work to the queue of a stream. The work also waits for `after`.
    pub(crate) fn enqueue(&mut self, stream: u32, work: Work, after: &[OpRef]) -> OpRef {
        let work = match self.record_work(stream, work) {
            Some(work) => work,
            // No queued work has this id.
            None => return OpRef { stream, id: 0 },
        };
        let id = self.state.next_op;
        self.state.next_op += 1;
        let op = OpRef { stream, id };
        let immediate = self.state.options.schedule == Schedule::Immediate;
        if immediate && self.state.pending == 0 && !matches!(work, Work::Callback(_)) {
            self.state.clock = self.state.clock.saturating_add(WORK_TIME);
            self.perform(op, work);
            return op;
        }
        let mut after: Vec<OpRef> =
            after.iter().copied().filter(|op| !self.state.is_done(*op)).collect();
        if self.state.pending != 0 {
            after.extend(self.state.legacy_order(stream));
        }
        let done_at = self.due(stream, &after);
        if let Some(found) = self.state.streams.at_mut(stream) {
            let first = found.queue.is_empty();
            found.queue.push_back(Op { id, done_at, after, work });
            found.last_done_at = done_at;
            self.state.pending += 1;
            if first {
                self.state.active.push(stream);
            }
        }
        if self.state.options.worker {
            self.shared.changed.notify_all();
        }
        if immediate {
            self.run_ready();
        }
        op
    }

    fn due(&self, stream: u32, after: &[OpRef]) -> u64 {
        let Schedule::Lag(lag) = self.state.options.schedule else { return 0 };
        let mut start = self.state.clock;
        if let Some(found) = self.state.streams.at(stream) {
            start = start.max(found.last_done_at);
        }
        for op in after {
            let queue = self.state.streams.at(op.stream).map(|found| &found.queue);
            let due = queue.and_then(|queue| {
                let index = queue.partition_point(|queued| queued.id < op.id);
                queue.get(index).map(|queued| queued.done_at)
            });
            start = start.max(due.unwrap_or(0));
        }
        start.saturating_add(nanoseconds(lag))
    }

    /// Does queued work at a driver call. The schedule decides how much work.
    pub(crate) fn progress(&mut self) {
        match self.state.options.schedule {
            Schedule::Immediate => self.run_ready(),
            Schedule::OnDemand => {}
            Schedule::Lag(_) => {
                let now = self.state.clock;
                self.run_due(now);
            }
            Schedule::Seeded(_) => {
                for _ in 0..self.state.random(4) {
                    let count = self.state.active.len() as u64;
                    if count == 0 {
                        return;
                    }
                    let pick = self.state.random(count) as usize;
                    let stream = self.state.active[pick];
                    if self.state.first_is_ready(stream) {
                        self.run_first(stream);
                    }
                }
            }
        }
    }

    /// Answers a query about queued work. Also does some work, so that a loop of queries ends.
    pub(crate) fn query(&mut self, op: Option<OpRef>) -> Result<(), CUresult> {
        let Some(op) = op.filter(|op| !self.state.is_done(*op)) else { return Ok(()) };
        match self.state.options.schedule {
            Schedule::Immediate => {}
            Schedule::Lag(_) => {
                let now = self.state.clock.saturating_add(QUERY_TIME);
                self.advance_to(now);
            }
            Schedule::OnDemand | Schedule::Seeded(_) => self.step_towards(op),
        }
        Err(CUresult::ERROR_NOT_READY)
    }

    /// Waits until work is done.
    pub(crate) fn complete(&mut self, target: OpRef) {
        let mut wanted = vec![target];
        while let Some(&op) = wanted.last() {
            if self.state.is_done(op) {
                wanted.pop();
            } else {
                self.step(&mut wanted);
            }
        }
    }

    pub(crate) fn complete_all(&mut self, ops: Vec<OpRef>) {
        for op in ops {
            self.complete(op);
        }
    }

    pub(crate) fn complete_everything(&mut self) {
        while let Some(&stream) = self.state.active.first() {
            if let Some(op) = self.state.last_op(stream) {
                self.complete(op);
            }
        }
    }

    /// Advances the virtual clock and does the work that is due at the new time.
    pub(crate) fn advance_to(&mut self, now: u64) {
        self.run_due(now);
        self.state.clock = self.state.clock.max(now);
    }

    /// Does each stream's first queued work, if that work is ready. The worker thread calls this.
    pub(crate) fn run_one_round(&mut self) {
        for stream in self.state.active.clone() {
            if self.state.first_is_ready(stream) {
                self.run_first(stream);
            }
        }
    }

    /// Takes the last entry of `wanted`, and does the first queued work of the entry's stream. If
    /// that work waits for other unfinished work, adds the other work to `wanted` instead.
    fn step(&mut self, wanted: &mut Vec<OpRef>) {
        let Some(&OpRef { stream, .. }) = wanted.last() else { return };
        let Some(found) = self.state.streams.at(stream) else { return };
        if found.running {
            self.shared.changed.wait(&mut self.state);
            return;
        }
        let before = found
            .queue
            .front()
            .and_then(|op| op.after.iter().copied().find(|op| !self.state.is_done(*op)));
        match before {
            Some(op) => wanted.push(op),
            None => self.run_first(stream),
        }
    }

    fn step_towards(&mut self, op: OpRef) {
        let mut wanted = vec![op];
        // Follows the chain of unfinished work for which `op` waits, until a piece of work is
        // ready, and does that piece. Does not wait for a running callback.
        loop {
            let Some(&OpRef { stream, .. }) = wanted.last() else { return };
            if self.state.streams.at(stream).is_none_or(|found| found.running) {
                return;
            }
            let depth = wanted.len();
            self.step(&mut wanted);
            if wanted.len() <= depth {
                return;
            }
        }
    }

    /// Does ready work until none is ready.
    fn run_ready(&mut self) {
        let mut index = 0;
        while let Some(&stream) = self.state.active.get(index) {
            if self.may_run(stream) {
                self.run_first(stream);
                index = 0;
            } else {
                index += 1;
            }
        }
    }

    /// Returns whether the first work of a stream may run now. If a worker exists, only the worker
    /// runs callbacks. A caller could hold a lock that the callback takes, and would then deadlock.
    fn may_run(&self, stream: u32) -> bool {
        let is_callback = || {
            let first = self.state.streams.at(stream).and_then(|found| found.queue.front());
            first.is_some_and(|op| matches!(op.work, Work::Callback(_)))
        };
        self.state.first_is_ready(stream) && !(self.state.options.worker && is_callback())
    }

    /// Does the work that is due at `now`, in the order of the due times.
    fn run_due(&mut self, now: u64) {
        loop {
            let first = self
                .state
                .active
                .iter()
                .filter_map(|&stream| {
                    let op = self.state.streams.at(stream)?.queue.front()?;
                    (op.done_at <= now).then_some((op.done_at, op.id, stream))
                })
                .filter(|(_, _, stream)| self.state.first_is_ready(*stream))
                .min();
            let Some((_, _, stream)) = first else { return };
            self.run_first(stream);
        }
    }

    /// Does the first work of a stream. This work must be ready.
    fn run_first(&mut self, stream: u32) {
        let Some(found) = self.state.streams.at_mut(stream) else { return };
        let Some(first) = found.queue.front_mut() else { return };
        let (id, done_at) = (first.id, first.done_at);
        let work = std::mem::replace(&mut first.work, Work::Nothing);
        self.state.clock = match self.state.options.schedule {
            Schedule::Lag(_) => self.state.clock.max(done_at),
            _ => self.state.clock.saturating_add(WORK_TIME),
        };
        match work {
            Work::Callback(callback) => self.call_host(stream, callback),
            work => {
                // The queue keeps its entry until `pop_first`. Until then, the work is not done.
                self.perform(OpRef { stream, id }, work);
            }
        }
        self.pop_first(stream);
    }

    fn pop_first(&mut self, stream: u32) {
        let state = &mut *self.state;
        let Some(found) = state.streams.at_mut(stream) else { return };
        found.queue.pop_front();
        state.pending -= 1;
        if found.queue.is_empty() {
            let gone = found.destroyed;
            state.active.retain(|other| *other != stream);
            if gone {
                state.streams.remove_at(stream);
            }
        }
    }

    /// Calls a host function without holding the lock. The stream stays blocked during the call.
    fn call_host(&mut self, stream: u32, callback: Callback) {
        let Some(found) = self.state.streams.at_mut(stream) else { return };
        found.running = true;
        let context = found.context;
        let status = self.state.contexts.at(context).and_then(|context| context.error);
        self.order_host_after(callback.clock.as_deref());
        self.run_unlocked(|| callback.run(status.unwrap_or(CUresult::SUCCESS)));
        if let Some(found) = self.state.streams.at_mut(stream) {
            found.running = false;
        }
        self.shared.changed.notify_all();
    }

    /// Runs code of the program without holding the lock. The code must not call the driver.
    pub(crate) fn run_unlocked(&mut self, run: impl FnOnce()) {
        let instance = self.shared.instance;
        MutexGuard::unlocked(&mut self.state, || {
            let before = IN_CALLBACK.replace(instance);
            run();
            IN_CALLBACK.set(before);
        });
    }
}

impl Callback {
    pub(crate) fn run(&self, status: CUresult) {
        let data = std::ptr::with_exposed_provenance_mut(self.data as usize);
        match self.function {
            // SAFETY: the caller of `cuLaunchHostFunc` guarantees a function that takes this data.
            HostFunction::Plain(Some(function)) => unsafe { function(data) },
            HostFunction::WithStatus(Some(function), stream) => {
                // If the context is lost, only callbacks of this form are called, with the
                // context's error as status.
                // SAFETY: the caller of `cuStreamAddCallback` guarantees a function that takes this
                // data.
                unsafe { function(gpuheap_driver::CUstream(stream), status, data) }
            }
            HostFunction::Plain(None) | HostFunction::WithStatus(None, _) => {}
        }
    }
}
