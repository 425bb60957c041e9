//! Vector clocks: what has happened before what.

/// Number of an actor: the host is one, each stream another. Never given out twice.
pub(crate) type Lane = usize;

/// The host's lane. All its threads share it: the emulator does not see the host's locks, and a
/// clock for each thread would report accesses that those order.
pub(crate) const HOST: Lane = 0;

/// Of each lane, how many of its steps have happened before.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clock(Vec<u64>);

/// One step of a lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Epoch {
    pub(crate) lane: Lane,
    pub(crate) step: u64,
}

impl Clock {
    /// One more step of a lane, which is then the latest that has happened.
    pub(crate) fn step(&mut self, lane: Lane) -> Epoch {
        if self.0.len() <= lane {
            self.0.resize(lane + 1, 0);
        }
        self.0[lane] += 1;
        Epoch { lane, step: self.0[lane] }
    }

    /// The latest step of a lane that has happened.
    pub(crate) fn latest(&self, lane: Lane) -> Epoch {
        Epoch { lane, step: self.0.get(lane).copied().unwrap_or(0) }
    }

    /// Everything that has happened before `other` has happened before this as well.
    pub(crate) fn join(&mut self, other: &Clock) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (own, other) in self.0.iter_mut().zip(&other.0) {
            *own = (*own).max(*other);
        }
    }

    /// Returns whether a step has happened before.
    pub(crate) fn covers(&self, epoch: Epoch) -> bool {
        self.0.get(epoch.lane).is_some_and(|step| *step >= epoch.step)
    }
}
