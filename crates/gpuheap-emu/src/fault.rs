//! Planned failures of driver calls.

use std::time::Duration;

use gpuheap_driver::CUresult;

/// Plan of the driver calls that fail or are delayed, for tests. The default plan is empty.
///
/// ```
/// use gpuheap_driver::CUresult;
/// use gpuheap_emu::{Fault, FaultPlan};
///
/// // The 7th driver call fails. A sweep repeats a scenario with each number in place of 7.
/// let sweep = FaultPlan::fail_call(7, CUresult::ERROR_OUT_OF_MEMORY);
/// // The second cuMemAlloc and every later one fails; the device runs out at 1 GiB.
/// let plan = FaultPlan::new([Fault::nth("cuMemAlloc_v2", 2, CUresult::ERROR_OUT_OF_MEMORY).onwards()])
///     .out_of_memory_at(1 << 30);
/// # let _ = (sweep, plan);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    faults: Vec<Fault>,
    memory_limit: Option<u64>,
}

impl FaultPlan {
    /// Creates a plan of these failures.
    pub fn new(faults: impl IntoIterator<Item = Fault>) -> FaultPlan {
        FaultPlan { faults: faults.into_iter().collect(), memory_limit: None }
    }

    /// Creates a plan in which the `nth` driver call fails, whatever its function. The first call
    /// after the plan is set is number 1.
    pub fn fail_call(nth: u64, code: CUresult) -> FaultPlan {
        FaultPlan::new([Fault::any(nth, code)])
    }

    /// Makes every device run out of memory when `bytes` bytes of its memory are in use.
    pub fn out_of_memory_at(mut self, bytes: u64) -> FaultPlan {
        self.memory_limit = Some(bytes);
        self
    }

    /// Returns `true` if the plan makes no call fail or wait, and sets no limit of memory.
    pub fn is_empty(&self) -> bool {
        self.faults.is_empty() && self.memory_limit.is_none()
    }

    pub(crate) fn has_faults(&self) -> bool {
        !self.faults.is_empty()
    }

    pub(crate) fn memory_limit(&self) -> Option<u64> {
        self.memory_limit
    }

    /// Returns the failures planned for one call of `symbol`. The call is number `overall` of all
    /// calls, and number `own` of the calls of `symbol`.
    pub(crate) fn at(&self, symbol: &str, overall: u64, own: u64) -> impl Iterator<Item = &Fault> {
        self.faults.iter().filter(move |fault| {
            let count = match fault.symbol {
                None => overall,
                Some(wanted) if wanted == symbol => own,
                Some(_) => return false,
            };
            count == fault.nth || fault.onwards && count > fault.nth
        })
    }
}

/// Planned failure or delay of driver calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    symbol: Option<&'static str>,
    nth: u64,
    onwards: bool,
    pub(crate) code: Option<CUresult>,
    pub(crate) context_lost: bool,
    pub(crate) delay: Duration,
}

impl Fault {
    /// Makes the `nth` call of `symbol` return `code` and do nothing. The first such call after the
    /// plan is set is number 1. [`CUresult::SUCCESS`] plans nothing, because the caller of a call
    /// that returned success and did nothing would read results that were never written.
    pub fn nth(symbol: &'static str, nth: u64, code: CUresult) -> Fault {
        Fault {
            symbol: Some(symbol),
            nth,
            onwards: false,
            code: Some(code).filter(|code| !code.is_success()),
            context_lost: false,
            delay: Duration::ZERO,
        }
    }

    /// Makes the `nth` driver call, of any function, return `code` and do nothing.
    /// [`CUresult::SUCCESS`] plans nothing.
    pub fn any(nth: u64, code: CUresult) -> Fault {
        Fault { symbol: None, ..Fault::nth("", nth, code) }
    }

    /// Delays the `nth` call of `symbol` by `delay` of real time. The call succeeds.
    pub fn slow(symbol: &'static str, nth: u64, delay: Duration) -> Fault {
        Fault { code: None, delay, ..Fault::nth(symbol, nth, CUresult::SUCCESS) }
    }

    /// Makes every call after the `nth` fail as well.
    pub fn onwards(mut self) -> Fault {
        self.onwards = true;
        self
    }

    /// Makes the failing call also lose the calling thread's context, as an illegal address does.
    /// Until the context is destroyed or reset, every later call in it returns the same code.
    pub fn context_lost(mut self) -> Fault {
        self.context_lost = true;
        self
    }
}
