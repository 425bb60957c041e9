//! Vector clocks. They record the order of steps of the host and the streams.

/// Index of an actor, never reused. The host is one actor, and each stream is another actor.
pub(crate) type Lane = usize;

/// Lane of the host. All host threads share this lane, because the emulator does not see the host's
/// locks. A clock for each thread would report accesses that those locks order.
pub(crate) const HOST: Lane = 0;

/// Vector clock: the latest step of each lane that has happened, indexed by lane.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clock(Vec<u64>);

/// One step of a lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Epoch {
    pub(crate) lane: Lane,
    pub(crate) step: u64,
}

impl Clock {
    /// Advances a lane by one step, and returns the new step.
    pub(crate) fn step(&mut self, lane: Lane) -> Epoch {
        if self.0.len() <= lane {
            self.0.resize(lane + 1, 0);
        }
        self.0[lane] += 1;
        Epoch { lane, step: self.0[lane] }
    }

    /// Returns the latest step of a lane in this clock.
    pub(crate) fn latest(&self, lane: Lane) -> Epoch {
        Epoch { lane, step: self.0.get(lane).copied().unwrap_or(0) }
    }

    /// Adds all steps that have happened before `other`.
    pub(crate) fn join(&mut self, other: &Clock) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (own, other) in self.0.iter_mut().zip(&other.0) {
            *own = (*own).max(*other);
        }
    }

    /// Returns whether a step has happened before this clock.
    pub(crate) fn covers(&self, epoch: Epoch) -> bool {
        self.0.get(epoch.lane).is_some_and(|step| *step >= epoch.step)
    }
}
