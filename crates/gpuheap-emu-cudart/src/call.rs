//! Access to the process's driver, and the common start of every call.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use gpuheap_driver::{CUresult, LibCuda, OpenError};

use crate::context;
use crate::error::{INSUFFICIENT_DRIVER, Outcome, record};

/// Returns the process's driver. The first call finds and initialises the driver.
pub(crate) fn driver() -> Outcome<&'static LibCuda> {
    static DRIVER: OnceLock<Result<LibCuda, CUresult>> = OnceLock::new();
    let driver = DRIVER.get_or_init(|| {
        LibCuda::open().map_err(|error| match error {
            OpenError::Initialise { code, .. } => code,
            _ => INSUFFICIENT_DRIVER,
        })
    });
    driver.as_ref().map_err(|code| *code)
}

/// Calls `body` with the driver. If the thread has no current context, first makes the primary
/// context of the thread's device current. Stores a failure as the thread's last error.
pub(crate) fn in_context(body: impl FnOnce(&LibCuda) -> Outcome) -> CUresult {
    guarded(|| {
        let driver = driver()?;
        context::enter(driver)?;
        body(driver)
    })
}

/// Calls `body`. Stores a failure as the thread's last error. Converts a panic to a failure, so
/// that no panic reaches the program.
pub(crate) fn guarded(body: impl FnOnce() -> Outcome) -> CUresult {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => CUresult::SUCCESS,
        Ok(Err(code)) => record(code),
        Err(_) => record(CUresult::ERROR_UNKNOWN),
    }
}
