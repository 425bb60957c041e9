//! The module's allocator, with a reserve of host memory for a shortage.
//!
//! Rust ends the process if an allocation fails. A program that catches `MemoryError` would
//! therefore end in the core's next small allocation. The reserve serves such allocations. After a
//! part of the reserve is spent, calls that allocate raise `MemoryError` until the host has memory
//! for a new part.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

use pyo3::prelude::*;

use crate::failure::refused;

/// Sizes in bytes of the parts of the reserve of host memory. The first part serves requests of at
/// most [`SMALL`] bytes. Each other part serves one larger request, such as the growth of a table.
/// Parts are never written, so they occupy addresses but no pages.
const SIZES: [usize; 6] = [256 << 10, 1 << 20, 2 << 20, 4 << 20, 8 << 20, 16 << 20];

/// Size in bytes of the largest request that the reserve's first part serves.
const SMALL: usize = 4 << 10;

#[global_allocator]
static ALLOCATOR: Reserving = Reserving {
    parts: [const { AtomicPtr::new(null_mut()) }; SIZES.len()],
    largest: AtomicUsize::new(0),
    is_spent: AtomicBool::new(false),
};

struct Reserving {
    /// Parts of the reserve, in the order of [`SIZES`]; null for a part that is not allocated.
    parts: [AtomicPtr<u8>; SIZES.len()],
    /// Size in bytes of the largest table so far.
    largest: AtomicUsize,
    /// `true` if a part of the reserve was spent, or could not be allocated.
    is_spent: AtomicBool,
}

/// Raises `MemoryError` if the reserve of host memory was spent and cannot be allocated again.
pub(crate) fn check(py: Python<'_>) -> PyResult<()> {
    if ALLOCATOR.is_spent.load(Ordering::Relaxed) { renew(py) } else { Ok(()) }
}

/// Allocates the missing parts of the reserve. Raises `MemoryError` if too few can be allocated.
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
    /// Allocates the missing parts of the reserve, the smallest first, until the host lacks memory
    /// for a part. Returns whether the parts suffice for the next growth of the largest table. A
    /// growth doubles a table's size.
    ///
    /// Larger parts may stay missing, because the host's free memory may be fragmented.
    fn hold_back(&self) -> bool {
        let next_growth = self.largest.load(Ordering::Relaxed) * 2;
        self.is_spent.store(false, Ordering::Relaxed);
        let held = (0..SIZES.len()).take_while(|&at| self.hold(at)).count();
        self.is_spent.fetch_or(held < SIZES.len(), Ordering::Relaxed);
        held == SIZES.len() || held > 1 && SIZES[held - 1] >= next_growth
    }

    /// Allocates part `at` of the reserve if it is missing. Returns `false` on failure.
    fn hold(&self, at: usize) -> bool {
        if self.parts[at].load(Ordering::Relaxed).is_null() {
            // SAFETY: every size in `SIZES` is greater than zero.
            let part = unsafe { System.alloc(layout(SIZES[at])) };
            if part.is_null() {
                return false;
            }
            // Frees the part that another thread may have stored in the meantime.
            free(self.parts[at].swap(part, Ordering::AcqRel), SIZES[at]);
        }
        true
    }

    /// Calls `request`, an allocation of `size` bytes. If it fails, spends a part of the reserve
    /// and retries.
    fn served(&self, size: usize, request: impl Fn() -> *mut u8) -> *mut u8 {
        let mut memory = request();
        if memory.is_null() {
            memory = self.retry(size, request);
        }
        // A request larger than every part of the reserve is for data, not for a table. Code that
        // requests memory for data returns an error on failure, so it needs no reserve.
        let is_table = size > SMALL && size <= SIZES[SIZES.len() - 1];
        if is_table && !memory.is_null() && size > self.largest.load(Ordering::Relaxed) {
            self.largest.fetch_max(size, Ordering::Relaxed);
        }
        memory
    }

    /// Frees the smallest part of the reserve that is large enough for a request. Then calls
    /// `request` again, so that the request gets the freed memory.
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
        // SAFETY: the system allocator made the part with this layout. A swap removed it from the
        // table, so no other thread frees it.
        unsafe { System.dealloc(part, layout(size)) };
    }
}

// SAFETY: the system allocator makes and frees all memory, with the caller's own layout. No
// function unwinds.
unsafe impl GlobalAlloc for Reserving {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: by the contract of `GlobalAlloc::alloc`, the size of `layout` is not zero.
        self.served(layout.size(), || unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: by the contract of `GlobalAlloc::alloc_zeroed`, the size of `layout` is not zero.
        self.served(layout.size(), || unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the system allocator made `at` with `layout`. If the first call fails, `at` stays
        // valid for the second call.
        self.served(size, || unsafe { System.realloc(at, layout, size) })
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the system allocator made `at` with `layout`.
        unsafe { System.dealloc(at, layout) };
    }
}
