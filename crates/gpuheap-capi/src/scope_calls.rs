//! C functions for scopes. The end of a scope frees the memory that its thread allocated inside and
//! has neither freed nor kept.
#![allow(
    clippy::missing_safety_doc,
    unsafe_op_in_unsafe_fn,
    reason = "the pointers are the caller's, under the preconditions of calls.rs"
)]

use std::ffi::{c_char, c_void};
use std::sync::Arc;

use crate::entry::{Failure, enter, gpuheap_status, text, write};
use crate::handle::gpuheap_heap;
use crate::scope::{Scope, gpuheap_scope_report};
use crate::sized::{size_of_optional, sized, write_result};

/// A scope of one thread and one heap. gpuheap_open_scope makes a scope, and gpuheap_close_scope
/// ends it.
#[derive(Debug)]
pub struct gpuheap_scope(Arc<Scope>);

sized!(gpuheap_scope_report, freed_at_end_bytes: u64, "figures of the scope");

/// Opens a scope of the calling thread. Until the scope ends, each allocation that this thread
/// makes from the heap belongs to the thread's innermost open scope of that heap.
///
/// name: a text for reports, at most 200 bytes. Null for no name. scope: receives the scope; null
/// on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuheap_open_scope(
    heap: *mut gpuheap_heap,
    name: *const c_char,
    scope: *mut *mut gpuheap_scope,
) -> gpuheap_status {
    enter("gpuheap_open_scope", || {
        write(scope, "where the scope goes", std::ptr::null_mut())?;
        gpuheap_heap::get(heap)?;
        let name = text(name, "the scope's name")?.unwrap_or("");
        if name.len() > 200 {
            return Err(Failure::refused(format!(
                "the scope's name has {} bytes; at most 200 are shown",
                name.len()
            )));
        }
        let opened = Scope::open(heap as usize, name);
        let opened = Box::into_raw(Box::new(gpuheap_scope(opened)));
        write(scope, "where the scope goes", opened)
    })
}

/// Ends a scope, on the thread that opened it. Frees the live allocations made inside, each as
/// gpuheap_free does. Does not wait for the device, unless a free waits. Scopes may end in any
/// order. Later allocations belong to the innermost scope that is still open. Do not use a scope
/// after its end.
///
/// GPUHEAP_STATUS_REFUSED: another thread opened the scope, and nothing was changed.
/// GPUHEAP_STATUS_DRIVER: a driver call failed, but the scope is closed. GPUHEAP_STATUS_GONE: the
/// heap was closed before, and its memory was freed then. The scope is closed too. A null scope is
/// allowed.
///
/// report: receives the figures. Set report->size before the call. May be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuheap_close_scope(
    scope: *mut gpuheap_scope,
    report: *mut gpuheap_scope_report,
) -> gpuheap_status {
    enter("gpuheap_close_scope", || {
        let Some(handle) = scope.as_ref() else { return Ok(()) };
        let size = size_of_optional(report)?;
        if !handle.0.close() {
            return Err(Failure::refused(format!(
                "the scope '{}' was opened by another thread; close it there",
                handle.0.name
            )));
        }
        let closed = handle.0.clone();
        drop(Box::from_raw(scope));
        // This check comes before any lock is taken, because in a forked child a thread of the
        // parent may hold the lock.
        let heap = gpuheap_heap::get(closed.heap as *const gpuheap_heap)?;
        let freed = heap.free_scope(&closed);
        if let Some(size) = size {
            write_result(closed.report(), report, size);
        }
        freed
    })
}

/// Removes an allocation from the scope that it was made in, so that the allocation outlives the
/// scope. If the allocation has no scope, nothing changes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuheap_keep(
    heap: *mut gpuheap_heap,
    address: *mut c_void,
) -> gpuheap_status {
    enter("gpuheap_keep", || gpuheap_heap::get(heap)?.keep(address))
}
