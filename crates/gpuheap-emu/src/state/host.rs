//! Maps the emulator's pinned and managed host memory, and accesses the caller's memory.

use std::ptr;

/// Maps zeroed host memory. The mapping takes no pages until the program touches them.
pub(crate) fn map(bytes: usize) -> Option<u64> {
    // SAFETY: an anonymous mapping at an address that the system chooses touches no existing
    // memory.
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

/// Unmaps a block that [`map`] returned.
pub(crate) fn unmap(address: u64, bytes: usize) {
    // SAFETY: called only with a result of `map`, once, after the work that uses the block is done.
    unsafe { libc::munmap(pointer(address).cast(), bytes) };
}

/// Copies out of host memory.
pub(crate) fn read(address: u64, out: &mut [u8]) {
    // SAFETY: the caller of the driver API guarantees that these bytes are valid until the work is
    // done. `out` is the emulator's own memory and does not overlap them.
    unsafe { ptr::copy_nonoverlapping(pointer(address), out.as_mut_ptr(), out.len()) };
}

/// Copies into host memory.
pub(crate) fn write(address: u64, data: &[u8]) {
    // SAFETY: the caller of the driver API guarantees that these bytes are valid until the work is
    // done. `data` is the emulator's own memory and does not overlap them.
    unsafe { ptr::copy_nonoverlapping(data.as_ptr(), pointer(address), data.len()) };
}

/// Copies within host memory.
pub(crate) fn copy(target: u64, source: u64, bytes: usize) {
    // SAFETY: the caller of the driver API guarantees that both ranges are valid until the work is
    // done. The ranges may overlap.
    unsafe { ptr::copy(pointer(source), pointer(target), bytes) };
}

fn pointer(address: u64) -> *mut u8 {
    ptr::with_exposed_provenance_mut(address as usize)
}
