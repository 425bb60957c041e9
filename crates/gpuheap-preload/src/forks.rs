//! Numbers processes, so that a forked child recognises that it is not its parent. Two children of
//! a process may have the same number.

use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use gpuheap_driver::fork;

/// Number of this process. Until it has one, the number of its closest ancestor that has one.
static LAST: AtomicU32 = AtomicU32::new(FIRST);

/// Number of the process that called [`watch`] first.
const FIRST: u32 = 1;

/// Number of the process, in a page that the kernel zeroes in a child. A handler of `fork` would
/// miss a raw `clone`.
static MARK: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());

/// Begins to number forked children, at the first call. Returns this process's number.
pub(crate) fn watch() -> u32 {
    static MAPPED: Once = Once::new();
    MAPPED.call_once(|| {
        if let Some(page) = map() {
            MARK.store(ptr::from_ref(page).cast_mut(), Ordering::Release);
        }
    });
    fork::watch();
    count()
}

/// Returns this process's number. It differs from the parent's number, and is not the process id.
#[inline]
pub(crate) fn count() -> u32 {
    // SAFETY: the pointer is null or leads to a page that is never unmapped.
    let mark = unsafe { MARK.load(Ordering::Acquire).as_ref() };
    let number = mark.map_or(FIRST, |mark| match mark.load(Ordering::Relaxed) {
        0 => number_child(mark),
        number => number,
    });
    fork::count().wrapping_add(number - FIRST)
}

/// Gives a new process its number. If threads race, the number of the first thread stays.
#[cold]
fn number_child(mark: &AtomicU32) -> u32 {
    let next = LAST.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
    let written = mark.compare_exchange(0, next, Ordering::Relaxed, Ordering::Relaxed);
    written.map_or_else(|other| other, |_| next)
}

/// Maps a page that the kernel zeroes in children. Returns `None` before Linux 4.14.
fn map() -> Option<&'static AtomicU32> {
    const BYTES: usize = 4096;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: the mapping is new, so no other code knows it. It is unmapped only if it is not
    // returned.
    unsafe {
        let page = libc::mmap(ptr::null_mut(), BYTES, protection, flags, -1, 0);
        if page == libc::MAP_FAILED {
            return None;
        }
        if libc::madvise(page, BYTES, libc::MADV_WIPEONFORK) != 0 {
            libc::munmap(page, BYTES);
            return None;
        }
        let mark = &*page.cast::<AtomicU32>();
        mark.store(FIRST, Ordering::Relaxed);
        Some(mark)
    }
}
