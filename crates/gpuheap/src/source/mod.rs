//! Sources of a heap's memory: implementations of `gpuheap_pool::MemorySource` by driver calls.

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

/// Returns `Ok` for success, or else the failure of `function` as an error of a source.
fn check(function: &'static str, code: CUresult) -> Result<(), SourceError> {
    gpuheap_driver::check(function, code).map_err(failure)
}

impl From<HostBorrowed> for SourceError {
    fn from(_: HostBorrowed) -> SourceError {
        SourceError::HostBorrowed
    }
}

/// Returns the driver's handle of a stream that a heap knows.
pub(crate) fn raw(stream: StreamRef) -> CUstream {
    CUstream(stream.raw().0)
}

/// Converts a stream's handle to the form that a heap's stream order stores.
pub(crate) fn handle(stream: CUstream) -> StreamHandle {
    StreamHandle(stream.0)
}
