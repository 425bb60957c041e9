//! Where a heap's memory comes from: the driver's calls behind `gpuheap_pool::MemorySource`.

mod events;
mod host;
mod ordered;
mod plain;
mod vmm;

pub(crate) use ordered::{OrderedSource, POOL_STEP};
pub(crate) use plain::PlainSource;

use gpuheap_driver::{CUresult, CUstream};
use gpuheap_pool::{SourceError, StreamHandle, StreamRef};

use crate::device::HostBorrowed;
use crate::error::failure;

/// Returns `Ok` for success, else the failure of `function` as a source says it.
fn check(function: &'static str, code: CUresult) -> Result<(), SourceError> {
    gpuheap_driver::check(function, code).map_err(failure)
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
