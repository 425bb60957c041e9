//! Checkpoints other processes. The driver moves a process's device memory to the host and back.
//!
//! On Linux, drivers of the 570 branch (CUDA 12.8) and newer have these functions. A checkpoint has
//! two steps. The first step locks a running process, so that its calls to CUDA wait. The second
//! step checkpoints the locked process. After a restore, the process stays locked until it is
//! unlocked. The driver works inside the target process, so the caller needs the right to debug
//! that process.

use std::ffi::c_int;
use std::ptr::null_mut;
use std::time::Duration;

use crate::types::*;
use crate::{CUresult, Driver, DriverError, check};

/// Driver calls that move the device memory of another process.
pub trait Checkpoints {
    /// Returns the state of a process. Does not block.
    ///
    /// # Errors
    ///
    /// Returns the driver's error if the driver is too old, or if the process does not use CUDA.
    fn state(&self, pid: u32) -> Result<CUprocessState, DriverError>;

    /// Locks a running process. From here on, the process's calls to CUDA wait. Blocks until the
    /// process's work has completed, at most for `limit`.
    ///
    /// # Errors
    ///
    /// Returns the driver's error if the process is not in the state [`CUprocessState::RUNNING`],
    /// or if its work takes longer than `limit`.
    fn lock(&self, pid: u32, limit: Duration) -> Result<(), DriverError>;

    /// Moves the device memory of a locked process to the host. Blocks until the memory is moved.
    ///
    /// # Errors
    ///
    /// Returns the driver's error if the process is not locked, or if host memory is too small.
    fn checkpoint(&self, pid: u32) -> Result<(), DriverError>;

    /// Moves the memory of a checkpointed process back to the device. Blocks until the memory is
    /// moved. The process stays locked.
    ///
    /// # Errors
    ///
    /// Returns the driver's error if the process is not checkpointed, or if the device lacks
    /// memory. If memory is lacking, some drivers leave the process in a state from which no call
    /// recovers it.
    fn restore(&self, pid: u32) -> Result<(), DriverError>;

    /// Unlocks a locked process, so that its calls to CUDA continue. Does not block.
    ///
    /// # Errors
    ///
    /// Returns the driver's error if the process is not locked.
    fn unlock(&self, pid: u32) -> Result<(), DriverError>;
}

/// Calls a function of the driver for the process with the given pid. The error names the function.
macro_rules! call {
    ($driver:expr, $function:ident($pid:expr, $argument:expr)) => {{
        let function = stringify!($function);
        let invalid = || DriverError::new(function, CUresult::ERROR_INVALID_VALUE);
        let pid = c_int::try_from($pid).map_err(|_| invalid())?;
        // SAFETY: the pointer is null for no arguments, or points to a local of the caller's frame.
        check(function, unsafe { $driver.$function(pid, $argument) })
    }};
}

impl<D: Driver> Checkpoints for D {
    fn state(&self, pid: u32) -> Result<CUprocessState, DriverError> {
        let mut state = CUprocessState::RUNNING;
        call!(self, cuCheckpointProcessGetState(pid, &mut state))?;
        Ok(state)
    }

    fn lock(&self, pid: u32, limit: Duration) -> Result<(), DriverError> {
        // For the driver, a timeout of 0 means no limit.
        let timeout_ms = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX).max(1);
        let mut arguments = CUcheckpointLockArgs { timeoutMs: timeout_ms, ..Default::default() };
        call!(self, cuCheckpointProcessLock(pid, &mut arguments))
    }

    fn checkpoint(&self, pid: u32) -> Result<(), DriverError> {
        call!(self, cuCheckpointProcessCheckpoint(pid, null_mut()))
    }

    fn restore(&self, pid: u32) -> Result<(), DriverError> {
        call!(self, cuCheckpointProcessRestore(pid, null_mut()))
    }

    fn unlock(&self, pid: u32) -> Result<(), DriverError> {
        call!(self, cuCheckpointProcessUnlock(pid, null_mut()))
    }
}
