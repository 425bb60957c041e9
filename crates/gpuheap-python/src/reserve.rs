//! The module's allocator, with a reserve of the host's memory for a shortage.
//!
//! Rust ends the process if an allocation fails. Without the reserve, a program that catches
//! `MemoryError` would end in the small allocations of the core. Once a part of the reserve is
//! spent, calls that allocate raise `MemoryError` until the host has memory for another one.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

use pyo3::prelude::*;

use crate::failure::refused;

/// Sizes in bytes of the parts of the reserve. The first serves requests of at most [`SMALL`]
/// bytes. Each of the others serves one larger request, such as the growth of a table. Parts are
/// never touched, so they take addresses and no pages.
const SIZES: [usize; 6] = [256 << 10, 1 << 20, 2 << 20, 4 << 20, 8 << 20, 16 << 20];

/// Bytes of the largest request that the first part serves.
const SMALL: usize = 4 << 10;

#[global_allocator]
static ALLOCATOR: Reserving = Reserving {
    parts: [const { AtomicPtr::new(null_mut()) }; SIZES.len()],
    largest: AtomicUsize::new(0),
    is_spent: AtomicBool::new(false),
};

struct Reserving {
    /// Parts by the index of their size in [`SIZES`]; null for a part that is not held.
    parts: [AtomicPtr<u8>; SIZES.len()],
    /// Bytes of the largest table so far.
    largest: AtomicUsize,
    /// `true` until all parts are held.
    is_spent: AtomicBool,
}

/// Raises `MemoryError` if the reserve was spent and too little can be held back anew.
pub(crate) fn check(py: Python<'_>) -> PyResult<()> {
    if ALLOCATOR.is_spent.load(Ordering::Relaxed) { renew(py) } else { Ok(()) }
}

/// Holds back the missing parts of the reserve.
#[cold]
pub(crate) fn renew(py: Python<'_>) -> PyResult<()> {
    if ALLOCATOR.hold_back() {
        return Ok(());
    }
    Err(refused(
        py,
        "HostResources",
        "the host is short of memory: the memory that gpuheap holds back for its own work is spent; \
         free memory of the program, or call heap.reclaim() if the device is emulated",
    ))
}

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, align_of::<u64>()).unwrap_or(Layout::new::<u64>())
}

impl Reserving {
    /// Holds back the parts for which the host has memory. Returns whether they suffice for the
    /// next growth of the largest table: it doubles.
    ///
    /// Larger parts are not required: memory that was freed in pieces may have no 16 MiB in a row,
    /// however much of it is free.
    fn hold_back(&self) -> bool {
        let next_growth = self.largest.load(Ordering::Relaxed) * 2;
        self.is_spent.store(false, Ordering::Relaxed);
        let held = (0..SIZES.len()).take_while(|&at| self.hold(at)).count();
        self.is_spent.fetch_or(held < SIZES.len(), Ordering::Relaxed);
        held == SIZES.len() || held > 1 && SIZES[held - 1] >= next_growth
    }

    /// Holds back one part, unless it is held. Returns whether it is held then.
    fn hold(&self, at: usize) -> bool {
        if self.parts[at].load(Ordering::Relaxed).is_null() {
            // SAFETY: all sizes of the table are above zero.
            let part = unsafe { System.alloc(layout(SIZES[at])) };
            if part.is_null() {
                return false;
            }
            // Another thread may have held the same part in the meantime.
            free(self.parts[at].swap(part, Ordering::AcqRel), SIZES[at]);
        }
        true
    }

    /// Returns the memory of `request` for `size` bytes, from the reserve if the host has none.
    fn served(&self, size: usize, request: impl Fn() -> *mut u8) -> *mut u8 {
        let mut memory = request();
        if memory.is_null() {
            memory = self.retry(size, request);
        }
        // Larger requests are data: they fail without ending the process.
        let is_table = size > SMALL && size <= SIZES[SIZES.len() - 1];
        if is_table && !memory.is_null() && size > self.largest.load(Ordering::Relaxed) {
            self.largest.fetch_max(size, Ordering::Relaxed);
        }
        memory
    }

    /// Releases the smallest held part that is large enough for a request, and calls it again.
    #[cold]
    fn retry(&self, size: usize, request: impl FnOnce() -> *mut u8) -> *mut u8 {
        let parts = if size <= SMALL { 0..1 } else { 1..SIZES.len() };
        for at in parts.filter(|&at| size <= SIZES[at]) {
            let part = self.parts[at].swap(null_mut(), Ordering::AcqRel);
            if !part.is_null() {
                free(part, SIZES[at]);
                self.is_spent.store(true, Ordering::Relaxed);
                return request();
            }
        }
        null_mut()
    }
}

fn free(part: *mut u8, size: usize) {
    if !part.is_null() {
        // SAFETY: the system allocated the part with this layout, and a swap took it out of the
        // table, so no other thread frees it.
        unsafe { System.dealloc(part, layout(size)) };
    }
}

// SAFETY: all memory is the system allocator's, requested and freed with the caller's own layout.
// Nothing here unwinds.
unsafe impl GlobalAlloc for Reserving {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the contract of `GlobalAlloc::alloc`: the size of `layout` is not zero.
        self.served(layout.size(), || unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the contract of `GlobalAlloc::alloc_zeroed`: the size of `layout` is not zero.
        self.served(layout.size(), || unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: `at` is the system allocator's, with `layout`. A failed call leaves it valid for
        // the second one.
        self.served(size, || unsafe { System.realloc(at, layout, size) })
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: `at` is the system allocator's, with `layout`.
        unsafe { System.dealloc(at, layout) };
    }
}
