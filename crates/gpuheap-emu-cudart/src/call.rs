//! The common start of every call.

use std::panic::{AssertUnwindSafe, catch_unwind};

use gpuheap_driver::CUresult;

use crate::context;
use crate::error::{Outcome, record};

/// Calls `body`. If the thread has no current context, first makes the primary context of the
/// thread's device current. Stores a failure as the thread's last error.
pub(crate) fn in_context(body: impl FnOnce() -> Outcome) -> CUresult {
    guarded(|| context::enter().and_then(|()| body()))
}

/// Calls `body`. Stores a failure as the thread's last error. Converts a panic to a failure.
pub(crate) fn guarded(body: impl FnOnce() -> Outcome) -> CUresult {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => CUresult::SUCCESS,
        Ok(Err(code)) => record(code),
        Err(_) => record(CUresult::ERROR_UNKNOWN),
    }
}
