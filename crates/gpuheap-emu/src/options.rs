//! Options of an emulator.

use std::time::Duration;

use crate::{FaultPlan, Profile};

/// Options of an [`Emulator`](crate::Emulator).
#[derive(Clone, Debug)]
pub struct Options {
    /// The devices, in the driver's order. None is allowed: `cuInit` then finds no device.
    pub devices: Vec<Profile>,
    /// When queued work is done.
    pub schedule: Schedule,
    /// True if misuse is looked for (see [`Finding`](crate::Finding)). Costs time and host memory
    /// in proportion to the accesses.
    pub checks: bool,
    /// Failures by plan.
    pub faults: FaultPlan,
    /// Answer of `cuDriverGetVersion`, as 1000 × major + 10 × minor.
    pub driver_version: i32,
    /// A thread that makes progress while nobody calls, so that a host that waits for a callback
    /// without calling the driver is not stuck. Under [`Schedule::Lag`] it also lets virtual time
    /// pass with real time. What runs when is then up to the machine.
    pub worker: bool,
}

impl Default for Options {
    /// One `h200`, work done at once, checks on, no faults, CUDA 13.0, no thread of its own.
    fn default() -> Options {
        Options {
            devices: vec![Profile::h200()],
            schedule: Schedule::Immediate,
            checks: true,
            faults: FaultPlan::default(),
            driver_version: 13_000,
            worker: false,
        }
    }
}

impl Options {
    /// The default with one device of this profile.
    pub fn with_device(profile: Profile) -> Options {
        Options { devices: vec![profile], ..Options::default() }
    }
}

/// When queued work is done. Waiting for work does it in every schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// At once, in the call that enqueues it.
    Immediate,
    /// Later: each driver call may do some of the work that is ready, picked by the seed. The same
    /// calls with the same seed do the same.
    Seeded(u64),
    /// Only when somebody waits for it. A query answers first and then does one step of what it
    /// asked about, so that a loop of queries ends.
    OnDemand,
    /// This much virtual time after it was enqueued, or after what it waits for was done if that
    /// is later. Waits and [`Emulator::advance`](crate::Emulator::advance) move the clock; a query
    /// that answers "not ready" moves it by 100 ns, so that a loop of queries ends.
    Lag(Duration),
}
