//! Where a heap's memory comes from: the driver's calls behind `gpuheap_pool::MemorySource`.

mod events;
mod host;
mod ordered;
mod plain;
mod vmm;

pub(crate) use ordered::{OrderedSource, POOL_STEP};
pub(crate) use plain::PlainSource;
pub(crate) use vmm::{NoVirtualMemory, VirtualMemory, probe as probe_virtual_memory};

use gpuheap_driver::{CUresult, CUstream, DriverError};
use gpuheap_pool::{DriverFailure, SourceError, StreamHandle, StreamRef};

use crate::device::HostBorrowed;

/// Returns `Ok` for success, else the failure of `function` as a source says it.
fn check(function: &'static str, code: CUresult) -> Result<(), SourceError> {
    gpuheap_driver::check(function, code).map_err(failure)
}

/// The failure of a driver call as a source says it.
pub(crate) fn failure(error: DriverError) -> SourceError {
    if error.is_out_of_memory() {
        return SourceError::OutOfMemory;
    }
    SourceError::Driver(DriverFailure { function: error.function(), code: error.code().0 })
}

/// The failure of a driver call as the driver said it.
pub(crate) fn driver_error(failure: DriverFailure) -> DriverError {
    DriverError::new(failure.function, CUresult(failure.code))
}

impl From<HostBorrowed> for SourceError {
    fn from(_: HostBorrowed) -> SourceError {
        SourceError::HostBorrowed
    }
}

/// The driver's handle of a stream that a heap knows.
pub(crate) fn raw(stream: StreamRef) -> CUstream {
    CUstream(stream.raw().0)
}

/// The handle of a stream as a heap's order keeps it.
pub(crate) fn handle(stream: CUstream) -> StreamHandle {
    StreamHandle(stream.0)
}
