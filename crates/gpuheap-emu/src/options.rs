//! Options of an emulator.

use std::sync::Arc;
use std::time::Duration;

use crate::{Account, FaultPlan, Profile};

/// Options of an [`Emulator`](crate::Emulator).
#[derive(Clone, Debug)]
pub struct Options {
    /// Devices of the machine. If the list is empty, `cuInit` finds no device.
    pub devices: Vec<Profile>,
    /// Indices in `devices` of the devices that the driver shows, in the driver's order; `None` to
    /// show all devices (see [`with_visible_devices`](Options::with_visible_devices)).
    pub visible: Option<Vec<usize>>,
    /// Schedule of queued work.
    pub schedule: Schedule,
    /// True if the checks look for misuse (see [`Finding`](crate::Finding)). The checks cost time
    /// and host memory in proportion to the accesses.
    pub checks: bool,
    /// Kernels that the device accepts.
    pub kernels: Kernels,
    /// Plan of failures.
    pub faults: FaultPlan,
    /// Version that `cuDriverGetVersion` reports, as 1000 × major + 10 × minor.
    pub driver_version: i32,
    /// True if a thread makes progress between driver calls. Without this thread, a host that waits
    /// for a callback and makes no driver call waits forever. Under [`Schedule::Lag`], virtual time
    /// also passes with real time, so the order in which work runs is not reproducible.
    pub worker: bool,
    /// Account of device memory that several processes share; `None` if no other process shares the
    /// memory.
    pub account: Option<Arc<Account>>,
}

impl Default for Options {
    /// Returns options for one `h200` with CUDA 13.0. Work is done immediately, checks are on, only
    /// gpuheap's own kernels run, and no call fails. No thread makes progress between calls, and no
    /// other process shares the device's memory.
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

/// Kernels that the device accepts. gpuheap's own kernels always run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernels {
    /// Refuses all other kernels.
    Own,
    /// Accepts all other kernels and runs none of them. A launch is queued in its stream and does
    /// nothing. Memory that was never written reads as zero. A copy of more than 1 MiB from the
    /// host to the device keeps no content, so the target reads as zero too. The checks report
    /// neither reads of unwritten memory nor unordered uses.
    NoOp,
}

/// Time at which queued work is done. In every schedule, a call that waits for work does the work
/// before it returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// Work is done immediately, in the call that enqueues it.
    Immediate,
    /// Work is done later. Each driver call may do some of the ready work, selected by the seed.
    /// Runs with equal seeds and equal calls do equal work.
    Seeded(u64),
    /// Work is done only when the host waits. A query returns its answer and then does one step of
    /// the queried work, so that a loop of queries ends.
    OnDemand,
    /// Work is done once this much virtual time has passed since it was enqueued and since the work
    /// that it waits for was done. Waits and [`Emulator::advance`](crate::Emulator::advance) move
    /// the virtual clock. A query that answers "not ready" moves it by 100 ns, so that a loop of
    /// queries ends.
    Lag(Duration),
}
