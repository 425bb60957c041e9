//! Checkpoints of other processes: the driver moves a process's device memory to the host and back.
//!
//! Drivers of the 570 branch (CUDA 12.8) and newer have these functions, on Linux. A checkpoint
//! takes three states: a running process is locked, so that its calls of CUDA wait, and a locked
//! one is checkpointed. A restored process is locked again. The calls are made by the driver in
//! the target, so the caller needs the right to debug it.

use std::ffi::c_int;
use std::ptr::null_mut;
use std::time::Duration;

use crate::types::*;
use crate::{CUresult, Driver, DriverError, check};

/// Returns the state of a process. Does not block.
///
/// # Errors
///
/// The error of the driver: it is too old, or the process does not use CUDA.
pub fn state(driver: &dyn Driver, pid: u32) -> Result<CUprocessState, DriverError> {
    const NAME: &str = "cuCheckpointProcessGetState";
    let mut state = CUprocessState::RUNNING;
    let pid = number(NAME, pid)?;
    // SAFETY: the pointer is valid for a write.
    check(NAME, unsafe { driver.cuCheckpointProcessGetState(pid, &mut state) })?;
    Ok(state)
}

/// Locks a running process: its calls of CUDA wait from here on. Blocks until its work is done, for
/// `limit` at most.
///
/// # Errors
///
/// The error of the driver: the process does not run, or its work takes longer.
pub fn lock(driver: &dyn Driver, pid: u32, limit: Duration) -> Result<(), DriverError> {
    const NAME: &str = "cuCheckpointProcessLock";
    // Zero would be no limit.
    let timeout_ms = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX).max(1);
    let mut arguments = CUcheckpointLockArgs { timeoutMs: timeout_ms, ..Default::default() };
    let pid = number(NAME, pid)?;
    // SAFETY: the arguments live during the call.
    check(NAME, unsafe { driver.cuCheckpointProcessLock(pid, &mut arguments) })
}

/// Moves the device memory of a locked process to the host. Blocks until that is done.
///
/// # Errors
///
/// The error of the driver: the process is not locked, or the host's memory does not suffice.
pub fn checkpoint(driver: &dyn Driver, pid: u32) -> Result<(), DriverError> {
    const NAME: &str = "cuCheckpointProcessCheckpoint";
    let pid = number(NAME, pid)?;
    // SAFETY: null stands for no arguments.
    check(NAME, unsafe { driver.cuCheckpointProcessCheckpoint(pid, null_mut()) })
}

/// Moves the memory of a checkpointed process back to its device. Blocks until that is done. The
/// process stays locked.
///
/// # Errors
///
/// The error of the driver: the process is not checkpointed, or the device lacks memory. Some
/// drivers leave a process for which memory is lacking in a state that nothing ends.
pub fn restore(driver: &dyn Driver, pid: u32) -> Result<(), DriverError> {
    const NAME: &str = "cuCheckpointProcessRestore";
    let pid = number(NAME, pid)?;
    // SAFETY: null stands for no arguments.
    check(NAME, unsafe { driver.cuCheckpointProcessRestore(pid, null_mut()) })
}

/// Unlocks a locked process: its calls of CUDA go on. Does not block.
///
/// # Errors
///
/// The error of the driver: the process is not locked.
pub fn unlock(driver: &dyn Driver, pid: u32) -> Result<(), DriverError> {
    const NAME: &str = "cuCheckpointProcessUnlock";
    let pid = number(NAME, pid)?;
    // SAFETY: null stands for no arguments.
    check(NAME, unsafe { driver.cuCheckpointProcessUnlock(pid, null_mut()) })
}

fn number(function: &'static str, pid: u32) -> Result<c_int, DriverError> {
    c_int::try_from(pid).map_err(|_| DriverError::new(function, CUresult::ERROR_INVALID_VALUE))
}
