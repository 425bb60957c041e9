//! Failures by plan.

use std::time::Duration;

use gpuheap_driver::CUresult;

/// Failures by plan. Empty by default.
///
/// ```
/// use gpuheap_driver::CUresult;
/// use gpuheap_emu::{Fault, FaultPlan};
///
/// // A sweep takes k through every call of a scenario.
/// let sweep = FaultPlan::fail_call(7, CUresult::ERROR_OUT_OF_MEMORY);
/// // The second cuMemAlloc and every later one fails; no more than 1 GiB can be had.
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
    /// A plan of these failures.
    pub fn new(faults: impl IntoIterator<Item = Fault>) -> FaultPlan {
        FaultPlan { faults: faults.into_iter().collect(), memory_limit: None }
    }

    /// Fails the `nth` call of all, counted from 1 and from when the plan is set.
    pub fn fail_call(nth: u64, code: CUresult) -> FaultPlan {
        FaultPlan::new([Fault::any(nth, code)])
    }

    /// Makes every device run out of memory when this many bytes are in use on it.
    pub fn out_of_memory_at(mut self, bytes: u64) -> FaultPlan {
        self.memory_limit = Some(bytes);
        self
    }

    /// Returns whether nothing is planned.
    pub fn is_empty(&self) -> bool {
        self.faults.is_empty() && self.memory_limit.is_none()
    }

    pub(crate) fn has_faults(&self) -> bool {
        !self.faults.is_empty()
    }

    pub(crate) fn memory_limit(&self) -> Option<u64> {
        self.memory_limit
    }

    /// Returns the failures planned for the call that is the `overall`-th of all and the `own`-th
    /// of its symbol.
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

/// One planned failure: which call, and what happens to it.
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
    /// The `nth` call of `symbol`, counted from 1 and from when the plan is set, returns `code` and
    /// does nothing. With [`CUresult::SUCCESS`] nothing is planned: a call that claims to have
    /// succeeded and did nothing would leave its caller with results that were never written.
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

    /// The `nth` call of all returns `code` and does nothing; with [`CUresult::SUCCESS`], nothing is
    /// planned.
    pub fn any(nth: u64, code: CUresult) -> Fault {
        Fault { symbol: None, ..Fault::nth("", nth, code) }
    }

    /// The `nth` call of `symbol` takes this much longer, in real time, and succeeds.
    pub fn slow(symbol: &'static str, nth: u64, delay: Duration) -> Fault {
        Fault { code: None, delay, ..Fault::nth(symbol, nth, CUresult::SUCCESS) }
    }

    /// Makes every later call fail as well.
    pub fn onwards(mut self) -> Fault {
        self.onwards = true;
        self
    }

    /// Loses the calling thread's context too: every later call in it returns the same code, as
    /// after an illegal address, until it is destroyed or reset.
    pub fn context_lost(mut self) -> Fault {
        self.context_lost = true;
        self
    }
}
