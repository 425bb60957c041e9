//! Host memory: the emulator's own pinned and managed blocks, and reads and writes of the caller's.

use std::ptr;

/// Reserves and zeroes host memory that costs nothing until it is touched.
pub(crate) fn map(bytes: usize) -> Option<u64> {
    // SAFETY: an anonymous mapping at an address of the system's choice touches nothing that exists.
    let address = unsafe {
        libc::mmap(
            ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    (address != libc::MAP_FAILED).then(|| address.expose_provenance() as u64)
}

/// Gives a block of [`map`] back.
pub(crate) fn unmap(address: u64, bytes: usize) {
    // SAFETY: only called with what `map` returned, once, after the work that uses it is done.
    unsafe { libc::munmap(pointer(address).cast(), bytes) };
}

/// Copies out of host memory.
pub(crate) fn read(address: u64, out: &mut [u8]) {
    // SAFETY: the caller of the driver API promised these bytes until the work is done; `out` is
    // the emulator's own memory and does not overlap them.
    unsafe { ptr::copy_nonoverlapping(pointer(address), out.as_mut_ptr(), out.len()) };
}

/// Copies into host memory.
pub(crate) fn write(address: u64, data: &[u8]) {
    // SAFETY: as in `read`.
    unsafe { ptr::copy_nonoverlapping(data.as_ptr(), pointer(address), data.len()) };
}

/// Copies within host memory.
pub(crate) fn copy(target: u64, source: u64, bytes: usize) {
    // SAFETY: as in `read`, for both; they may overlap.
    unsafe { ptr::copy(pointer(source), pointer(target), bytes) };
}

fn pointer(address: u64) -> *mut u8 {
    ptr::with_exposed_provenance_mut(address as usize)
}
