//! The module's allocator: memory of the host that is held back for a shortage.
//!
//! Rust ends the process where an allocation fails. Without the reserve, a program that catches
//! `MemoryError` would end in the small allocations of the core. Once the reserve is spent, calls
//! that allocate raise `MemoryError` until there is memory for a new one.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use pyo3::prelude::*;

use crate::failure::refused;

/// Sizes in bytes of the parts held back: for requests up to [`SMALL`], and for larger ones, such
/// as a table that grows. Neither is touched, so they take addresses and no pages.
const SIZES: [usize; 2] = [256 << 10, 32 << 20];

/// Bytes of the largest request that takes the first part.
const SMALL: usize = 4 << 10;

#[global_allocator]
static ALLOCATOR: Reserving = Reserving {
    parts: [AtomicPtr::new(null_mut()), AtomicPtr::new(null_mut())],
    is_spent: AtomicBool::new(false),
};

struct Reserving {
    parts: [AtomicPtr<u8>; 2],
    /// `true` once a part was spent.
    is_spent: AtomicBool,
}

/// Raises `MemoryError` if the reserve was spent and cannot be held back anew.
pub(crate) fn check(py: Python<'_>) -> PyResult<()> {
    if ALLOCATOR.is_spent.load(Ordering::Relaxed) { renew(py) } else { Ok(()) }
}

/// Holds the reserve back, unless it is.
#[cold]
pub(crate) fn renew(py: Python<'_>) -> PyResult<()> {
    if ALLOCATOR.hold_back() {
        return Ok(());
    }
    Err(refused(
        py,
        "HostResources",
        "the host is short of memory: the 32 MiB that gpuheap holds back for its own work are spent; \
         free memory of the program, or call heap.reclaim() if the device is emulated",
    ))
}

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, align_of::<u64>()).unwrap_or(Layout::new::<u64>())
}

impl Reserving {
    /// Holds back the parts that are missing. Returns whether none is missing then.
    fn hold_back(&self) -> bool {
        self.is_spent.store(false, Ordering::Relaxed);
        for (part, size) in self.parts.iter().zip(SIZES) {
            if !part.load(Ordering::Relaxed).is_null() {
                continue;
            }
            // SAFETY: the layout has a size.
            let made = unsafe { System.alloc(layout(size)) };
            if made.is_null() {
                self.is_spent.store(true, Ordering::Relaxed);
                return false;
            }
            release(part.swap(made, Ordering::AcqRel), size);
        }
        true
    }

    /// Calls `request` again after the part for its size was released.
    #[cold]
    fn retry(&self, size: usize, request: impl FnOnce() -> *mut u8) -> *mut u8 {
        let at = usize::from(size > SMALL);
        if size > SIZES[at] / 2 {
            return null_mut();
        }
        let part = self.parts[at].swap(null_mut(), Ordering::AcqRel);
        if part.is_null() {
            return null_mut();
        }
        self.is_spent.store(true, Ordering::Relaxed);
        release(part, SIZES[at]);
        request()
    }
}

fn release(part: *mut u8, size: usize) {
    if !part.is_null() {
        // SAFETY: a part was allocated with this layout, and was swapped out once.
        unsafe { System.dealloc(part, layout(size)) };
    }
}

// SAFETY: memory is the system's own, by the layout of the caller. Nothing unwinds.
unsafe impl GlobalAlloc for Reserving {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's layout has a size.
        let request = || unsafe { System.alloc(layout) };
        let made = request();
        if made.is_null() { self.retry(layout.size(), request) } else { made }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's layout has a size.
        let request = || unsafe { System.alloc_zeroed(layout) };
        let made = request();
        if made.is_null() { self.retry(layout.size(), request) } else { made }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's memory is the system's, with this layout. A request that fails
        // leaves it as it was.
        let request = || unsafe { System.realloc(at, layout, size) };
        let made = request();
        if made.is_null() { self.retry(size, request) } else { made }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's memory is the system's, with this layout.
        unsafe { System.dealloc(at, layout) };
    }
}
