//! Checkpoints of other processes: the driver moves a process's device memory to the host and back.
//!
//! On Linux, drivers of the 570 branch (CUDA 12.8) and newer have these functions. A checkpoint has
//! two steps. The first locks a running process: its calls to CUDA wait. The second checkpoints the
//! locked process. After a restore, the process is locked until it is unlocked. The driver works
//! inside the target process, so the caller needs the right to debug that process.

use std::ffi::c_int;
use std::ptr::null_mut;
use std::time::Duration;

use crate::types::*;
use crate::{CUresult, Driver, DriverError, check};

/// Returns the state of a process. Does not block.
///
/// # Errors
///
/// The driver's error: the driver is too old, or the process does not use CUDA.
pub fn state(driver: &dyn Driver, pid: u32) -> Result<CUprocessState, DriverError> {
    const NAME: &str = "cuCheckpointProcessGetState";
    let mut state = CUprocessState::RUNNING;
    let pid = number(NAME, pid)?;
    // SAFETY: the pointer is valid for a write.
    check(NAME, unsafe { driver.cuCheckpointProcessGetState(pid, &mut state) })?;
    Ok(state)
}

/// Locks a running process: from here on, its calls to CUDA wait. Blocks until the process's work
/// has completed, but for `limit` at most.
///
/// # Errors
///
/// The driver's error: the process is not in the state [`CUprocessState::RUNNING`], or its work
/// takes longer than `limit`.
pub fn lock(driver: &dyn Driver, pid: u32, limit: Duration) -> Result<(), DriverError> {
    const NAME: &str = "cuCheckpointProcessLock";
    // For the driver, a timeout of 0 means no limit.
    let timeout_ms = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX).max(1);
    let mut arguments = CUcheckpointLockArgs { timeoutMs: timeout_ms, ..Default::default() };
    let pid = number(NAME, pid)?;
    // SAFETY: the arguments live during the call.
    check(NAME, unsafe { driver.cuCheckpointProcessLock(pid, &mut arguments) })
}

/// Moves the device memory of a locked process to the host. Blocks until the memory is moved.
///
/// # Errors
///
/// The driver's error: the process is not locked, or host memory is too small.
pub fn checkpoint(driver: &dyn Driver, pid: u32) -> Result<(), DriverError> {
    const NAME: &str = "cuCheckpointProcessCheckpoint";
    let pid = number(NAME, pid)?;
    // SAFETY: the driver takes null as no arguments.
    check(NAME, unsafe { driver.cuCheckpointProcessCheckpoint(pid, null_mut()) })
}

/// Moves the memory of a checkpointed process back to the device. Blocks until the memory is moved.
/// The process stays locked.
///
/// # Errors
///
/// The driver's error: the process is not checkpointed, or the device lacks memory. If memory is
/// lacking, some drivers leave the process in a state that no call ends.
pub fn restore(driver: &dyn Driver, pid: u32) -> Result<(), DriverError> {
    const NAME: &str = "cuCheckpointProcessRestore";
    let pid = number(NAME, pid)?;
    // SAFETY: the driver takes null as no arguments.
    check(NAME, unsafe { driver.cuCheckpointProcessRestore(pid, null_mut()) })
}

/// Unlocks a locked process: its calls to CUDA continue. Does not block.
///
/// # Errors
///
/// The driver's error: the process is not locked.
pub fn unlock(driver: &dyn Driver, pid: u32) -> Result<(), DriverError> {
    const NAME: &str = "cuCheckpointProcessUnlock";
    let pid = number(NAME, pid)?;
    // SAFETY: the driver takes null as no arguments.
    check(NAME, unsafe { driver.cuCheckpointProcessUnlock(pid, null_mut()) })
}

fn number(function: &'static str, pid: u32) -> Result<c_int, DriverError> {
    c_int::try_from(pid).map_err(|_| DriverError::new(function, CUresult::ERROR_INVALID_VALUE))
}
