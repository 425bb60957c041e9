//! Implements the sources of heaps' memory, `gpuheap_pool::MemorySource`, by driver calls.

mod events;
mod ordered;
mod plain;
mod vmm;

pub(crate) use ordered::{OrderedSource, POOL_STEP};
pub(crate) use plain::PlainSource;

use gpuheap_driver::{CUresult, CUstream};
use gpuheap_pool::{SourceError, SourceResult, StreamRef};

use crate::device::Context;
use crate::error::HostBorrowed;
use crate::error::failure;
use crate::kind::MemoryKind;
use crate::thread_stream;

/// Converts a result code of `function` to an error of a source.
fn check(function: &'static str, code: CUresult) -> SourceResult {
    gpuheap_driver::check(function, code).map_err(failure)
}

impl From<HostBorrowed> for SourceError {
    fn from(_: HostBorrowed) -> SourceError {
        SourceError::HostBorrowed
    }
}

/// Returns the driver's handle of a heap's stream for the calling thread.
pub(crate) fn raw(stream: StreamRef) -> CUstream {
    let handle = stream.raw();
    handle.thread().map_or(CUstream(handle.0), thread_stream::handle)
}

/// Names a range of a heap's addresses for a profiler.
fn name_pool(context: &Context, kind: MemoryKind, address: u64, bytes: u64) {
    if let Some(names) = context.memory_names.get() {
        let device = &context.info().name;
        names.add_pool(address, bytes, &format!("gpuheap {kind} memory, {device}"));
    }
}

/// Removes the name of the range that begins at `address`.
fn unname_pool(context: &Context, address: u64) {
    if let Some(names) = context.memory_names.get() {
        names.remove_pool(address);
    }
}
