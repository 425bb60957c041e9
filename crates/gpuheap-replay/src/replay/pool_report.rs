//! Results of replays through one pool.

use gpuheap::PoolKind;

use super::{Minimum, Pool, Stop};
use crate::PeakRange;

/// Result of the replay through one pool. Sizes are bytes.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PoolReport {
    /// The pool as it was asked for.
    pub pool: Pool,
    /// The settings that `torch` alone stands for, as `PYTORCH_CUDA_ALLOC_CONF` holds them.
    pub settings: Option<String>,
    /// The kind that gpuheap's heap had, if the device cannot have the one that was asked for.
    pub actual: Option<PoolKind>,
    /// Why it was another kind.
    pub fallback: Option<String>,
    /// The most that was live at once, as requested.
    pub peak_live: u64,
    /// The most that was taken from the driver. A range if the speed of the program decides.
    pub peak_reserved: PeakRange,
    /// Calls of the driver.
    pub driver_calls: u64,
    /// Host time of an event in the first pass, nanoseconds; `None` for models.
    pub cold_ns: Option<f64>,
    /// Median host time of an event in later passes, nanoseconds; `None` for models.
    pub warm_ns: Option<f64>,
    /// Where memory ran out.
    pub stop: Option<Stop>,
    /// `true` if the replay got through, but the program may run out of memory: its speed decides
    /// which blocks of other streams are free.
    pub may_fail: bool,
    /// The smallest device, if it was asked for.
    pub minimum: Option<Minimum>,
}

impl PoolReport {
    /// Returns whether the program gets through, whatever its speed.
    pub fn gets_through(&self) -> bool {
        self.stop.is_none() && !self.may_fail
    }

    /// Returns the part of the memory that was used at the peak; `None` if none was taken.
    pub fn utilisation(&self) -> Option<f64> {
        let peak = self.peak_reserved.high;
        (peak != 0).then(|| self.peak_live as f64 / peak as f64)
    }
}
