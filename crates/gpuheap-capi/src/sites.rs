//! C functions that list the places of a program that allocated, as arrays of [`gpuheap_site`].
//! Their documentation goes into the header. Pointers follow the preconditions in `calls.rs`.
#![allow(
    clippy::missing_safety_doc,
    unsafe_op_in_unsafe_fn,
    reason = "the pointers are the caller's, under the preconditions of calls.rs"
)]

use std::ffi::c_char;
use std::mem::size_of;

use gpuheap::{CallStack, Change, Leak, MemoryKind};

use crate::account::gpuheap_snapshot;
use crate::entry::{Failure, enter, gpuheap_status, write_if_wanted};
use crate::handle::gpuheap_heap;
use crate::kinds::gpuheap_kind;
use crate::sized::{size_of_result, sized, write_result};
use crate::texts::cut;

/// A place in the program's code that allocated memory. gpuheap_list_leaks fills the figures with
/// the place's outstanding allocations, gpuheap_list_growth with their growth. Before calling
/// either, set size in the first structure of the array to sizeof(gpuheap_site). Each structure of
/// the array has that size. Texts end with a null. A text that is too long is cut. Later versions
/// add fields at the end.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct gpuheap_site {
    /// sizeof(gpuheap_site).
    pub size: usize,
    /// Requested bytes of the outstanding allocations. From gpuheap_list_growth: the growth of
    /// these bytes between two snapshots.
    pub bytes: i64,
    /// Number of outstanding allocations. From gpuheap_list_growth: the growth of that number.
    pub allocations: i64,
    /// Operating system's id of the thread that allocated most of these bytes. 0 if the id is
    /// unknown. gpuheap_list_growth always sets 0.
    pub thread_id: u64,
    /// Kind of the memory, a gpuheap_kind.
    pub kind: u32,
    /// Line of the place in its source file, counted from 1. 0 if the line is unknown.
    pub line: u32,
    /// Name of the thread that thread_id identifies. gpuheap_list_growth leaves it empty.
    pub thread: [c_char; 64],
    /// Name of the function that allocated. Empty if unknown.
    pub function: [c_char; 128],
    /// Name of the source file. Empty if unknown.
    pub file: [c_char; 256],
}

/// Lists the outstanding allocations as an array of structures, one for each place, most bytes
/// first. gpuheap_leaks writes the list as a text. Does not wait. Returns GPUHEAP_STATUS_REFUSED if
/// the heap was opened without tracking. With the tracking "backtraces", the first call reads the
/// program's debug information. That may take seconds.
///
/// sites: room for capacity structures. May be null if capacity is 0. count: receives the number of
/// places, even if that number is above capacity. May be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuheap_list_leaks(
    heap: *mut gpuheap_heap,
    sites: *mut gpuheap_site,
    capacity: usize,
    count: *mut usize,
) -> gpuheap_status {
    enter("gpuheap_list_leaks", || {
        let size = gpuheap_site::size_of(sites, capacity)?;
        let leaks = gpuheap_heap::get(heap)?.heap().leaks()?;
        let places = leaks.sites.iter().take(capacity).map(gpuheap_site::from_leak);
        gpuheap_site::write(places, sites, size);
        write_if_wanted(count, leaks.sites.len());
        Ok(())
    })
}

/// Lists the changes between two snapshots of one heap as an array of structures, largest growth
/// first, decreases last. gpuheap_snapshot_difference writes the changes as a text.
///
/// sites, capacity, count: as for gpuheap_list_leaks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuheap_list_growth(
    earlier: *const gpuheap_snapshot,
    later: *const gpuheap_snapshot,
    sites: *mut gpuheap_site,
    capacity: usize,
    count: *mut usize,
) -> gpuheap_status {
    enter("gpuheap_list_growth", || {
        let size = gpuheap_site::size_of(sites, capacity)?;
        let change = gpuheap_snapshot::difference(earlier, later)?;
        let places = change.changes.iter().take(capacity).map(gpuheap_site::from_change);
        gpuheap_site::write(places, sites, size);
        write_if_wanted(count, change.changes.len());
        Ok(())
    })
}

sized!(gpuheap_site, file: [c_char; 256], "sites");

impl gpuheap_site {
    fn from_leak(leak: &Leak) -> gpuheap_site {
        let thread = leak.threads.first();
        gpuheap_site {
            bytes: leak.bytes as i64,
            allocations: leak.allocations as i64,
            thread_id: thread.and_then(|thread| thread.id).unwrap_or(0),
            thread: cut(thread.map_or("", |thread| &thread.name)),
            ..gpuheap_site::at(&leak.stack, leak.kind)
        }
    }

    fn from_change(change: &Change) -> gpuheap_site {
        gpuheap_site {
            bytes: change.bytes,
            allocations: change.allocations,
            ..gpuheap_site::at(&change.stack, change.kind)
        }
    }

    /// Makes a structure for a call stack's innermost function, with all figures zero.
    fn at(stack: &CallStack, kind: MemoryKind) -> gpuheap_site {
        let frame = stack.frames().first();
        gpuheap_site {
            size: size_of::<gpuheap_site>(),
            bytes: 0,
            allocations: 0,
            thread_id: 0,
            kind: gpuheap_kind::from_kind(kind) as u32,
            line: frame.and_then(|frame| frame.line).unwrap_or(0),
            thread: cut(""),
            function: cut(frame.and_then(|frame| frame.name.as_deref()).unwrap_or("")),
            file: cut(frame.and_then(|frame| frame.file.as_deref()).unwrap_or("")),
        }
    }

    /// Reads the size that the program set in the first structure of an array. Returns 0 if
    /// `capacity` is 0.
    ///
    /// # Safety
    ///
    /// `sites` is null or, with a capacity above 0, valid for reads of its size field.
    unsafe fn size_of(sites: *const gpuheap_site, capacity: usize) -> Result<usize, Failure> {
        if capacity == 0 {
            return Ok(0);
        }
        size_of_result(sites)
    }

    /// Writes structures of `size` bytes each.
    ///
    /// # Safety
    ///
    /// `to` has room for all these structures.
    unsafe fn write(sites: impl Iterator<Item = gpuheap_site>, to: *mut gpuheap_site, size: usize) {
        for (at, site) in sites.enumerate() {
            write_result(site, to.byte_add(at * size), size);
        }
    }
}
