//! Options of an emulator.

use std::sync::Arc;
use std::time::Duration;

use crate::{Account, FaultPlan, Profile};

/// Options of an [`Emulator`](crate::Emulator).
#[derive(Clone, Debug)]
pub struct Options {
    /// Devices of the machine. If the list is empty, `cuInit` finds no device.
    pub devices: Vec<Profile>,
    /// Numbers in `devices` of those that the driver shows, in its order; `None` for all
    /// (see [`with_visible_devices`](Options::with_visible_devices)).
    pub visible: Option<Vec<usize>>,
    /// Schedule of queued work.
    pub schedule: Schedule,
    /// True if the checks look for misuse (see [`Finding`](crate::Finding)). They cost time and
    /// host memory in proportion to the accesses.
    pub checks: bool,
    /// Kernels that the device accepts.
    pub kernels: Kernels,
    /// Plan of failures.
    pub faults: FaultPlan,
    /// Answer of `cuDriverGetVersion`, as 1000 × major + 10 × minor.
    pub driver_version: i32,
    /// True if a thread makes progress between driver calls. A host that waits for a callback
    /// without calling the driver then does not wait forever. Under [`Schedule::Lag`], the thread
    /// also lets virtual time pass with real time. The order in which work runs is then not
    /// reproducible.
    pub worker: bool,
    /// Account of the devices' memory that several processes share; `None` if this emulator has
    /// its devices for itself.
    pub account: Option<Arc<Account>>,
}

impl Default for Options {
    /// One `h200`, work done at once, checks on, gpuheap's own kernels, no faults, CUDA 13.0, no
    /// worker, an account of its own.
    fn default() -> Options {
        Options {
            devices: vec![Profile::h200()],
            visible: None,
            schedule: Schedule::Immediate,
            checks: true,
            kernels: Kernels::Own,
            faults: FaultPlan::default(),
            driver_version: 13_000,
            worker: false,
            account: None,
        }
    }
}

impl Options {
    /// Returns the default options with one device of this profile.
    pub fn with_device(profile: Profile) -> Options {
        Options { devices: vec![profile], ..Options::default() }
    }
}

/// Kernels that the device accepts. It runs gpuheap's own in every mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernels {
    /// Refuses all other kernels.
    Own,
    /// Accepts all other kernels and runs none: a launch takes its place in its stream and does
    /// nothing. Memory that was never written reads as zero, and a copy of more than 1 MiB from the
    /// host to the device keeps no content and reads as zero too. The checks do not look for reads
    /// of memory that was never written or for uses that nothing orders.
    NoOp,
}

/// Time at which queued work is done. A wait for work does it in every schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// At once, in the call that enqueues it.
    Immediate,
    /// Later: each driver call may do some of the ready work, picked by the seed. Equal calls with
    /// an equal seed do equal work.
    Seeded(u64),
    /// On a wait of the host only. A query answers first and then does one step of the work that
    /// of its query, so that a loop of queries ends.
    OnDemand,
    /// This much virtual time after it was enqueued, or after the work that it waits for was done,
    /// if that is later. Waits and [`Emulator::advance`](crate::Emulator::advance) move the clock.
    /// A query that answers "not ready" moves it by 100 ns, so that a loop of queries ends.
    Lag(Duration),
}
