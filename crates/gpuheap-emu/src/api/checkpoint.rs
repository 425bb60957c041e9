//! Checkpoints of processes. An emulated device is memory of its own process and cannot be moved.
//! So every function except the query of the state is refused.

use std::ffi::{c_int, c_void};

use gpuheap_driver::*;

use crate::emulator::Call;
use crate::{Out, Outcome};

impl Call<'_> {
    /// Writes the state "running" for this process, and refuses any other process.
    pub(crate) fn cuCheckpointProcessGetState(
        &mut self,
        pid: c_int,
        state: Out<CUprocessState>,
    ) -> Outcome {
        if u32::try_from(pid) != Ok(std::process::id()) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        state.write(CUprocessState::RUNNING)
    }

    pub(crate) fn cuCheckpointProcessLock(
        &mut self,
        _pid: c_int,
        _arguments: Out<CUcheckpointLockArgs>,
    ) -> Outcome {
        Err(CUresult::ERROR_NOT_SUPPORTED)
    }

    pub(crate) fn cuCheckpointProcessCheckpoint(
        &mut self,
        _pid: c_int,
        _arguments: Out<c_void>,
    ) -> Outcome {
        Err(CUresult::ERROR_NOT_SUPPORTED)
    }

    pub(crate) fn cuCheckpointProcessRestore(
        &mut self,
        _pid: c_int,
        _arguments: Out<c_void>,
    ) -> Outcome {
        Err(CUresult::ERROR_NOT_SUPPORTED)
    }

    pub(crate) fn cuCheckpointProcessUnlock(
        &mut self,
        _pid: c_int,
        _arguments: Out<c_void>,
    ) -> Outcome {
        Err(CUresult::ERROR_NOT_SUPPORTED)
    }
}
