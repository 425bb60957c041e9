//! Results of replays through one pool.

use gpuheap::PoolKind;

use super::{Minimum, Pool, Stop};
use crate::PeakRange;

/// Result of the replay through one pool. Sizes are bytes.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PoolReport {
    /// The pool, as the user named it.
    pub pool: Pool,
    /// Settings used if the user named the pool `torch` without settings, in the form of
    /// `PYTORCH_CUDA_ALLOC_CONF`. They are the recorded settings, or else PyTorch's defaults.
    pub settings: Option<String>,
    /// The kind of gpuheap's heap, if the device does not support the kind that the user named.
    pub actual: Option<PoolKind>,
    /// Reason why the heap's kind differs from the kind that the user named.
    pub fallback: Option<String>,
    /// Peak of live bytes, as requested.
    pub peak_live: u64,
    /// Peak of bytes taken from the driver. It is a range if the peak depends on the program's
    /// speed.
    pub peak_reserved: PeakRange,
    /// Number of driver calls.
    pub driver_calls: u64,
    /// Host time of an event in the first pass, in nanoseconds; `None` for models of allocators.
    pub cold_ns: Option<f64>,
    /// Median host time of an event in later passes, in nanoseconds; `None` for models.
    pub warm_ns: Option<f64>,
    /// Request at which memory ran out.
    pub stop: Option<Stop>,
    /// `true` if the program may run out of memory although the replay did not. The program's speed
    /// decides which blocks of other streams are free.
    pub may_fail: bool,
    /// Smallest device on which memory does not run out, if the options request a search for it.
    pub minimum: Option<Minimum>,
}

impl PoolReport {
    /// Returns an empty report for a pool.
    pub(super) fn new(pool: Pool) -> Self {
        Self {
            pool,
            settings: None,
            actual: None,
            fallback: None,
            peak_live: 0,
            peak_reserved: PeakRange::exact(0),
            driver_calls: 0,
            cold_ns: None,
            warm_ns: None,
            stop: None,
            may_fail: false,
            minimum: None,
        }
    }

    /// Returns `true` if memory does not run out with this pool, however fast host and device run.
    pub fn gets_through(&self) -> bool {
        self.stop.is_none() && !self.may_fail
    }

    /// Returns the peak of live bytes divided by the peak of reserved bytes; `None` if nothing was
    /// reserved.
    pub fn utilisation(&self) -> Option<f64> {
        let peak = self.peak_reserved.high;
        (peak != 0).then(|| self.peak_live as f64 / peak as f64)
    }
}
