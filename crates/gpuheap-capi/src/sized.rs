//! Structures that begin with their size, so that programs and libraries of different versions work
//! together.

use std::mem::size_of;

use crate::entry::Failure;

/// Reads the size that the program set in a structure for results.
///
/// # Safety
///
/// `to` is null or valid for reads of its first field, the size.
pub(crate) unsafe fn size_of_result<T>(
    to: *const T,
    first_version: usize,
    what: &str,
    name: &str,
) -> Result<usize, Failure> {
    if to.is_null() {
        return Err(Failure::refused(format!("where the {what} go is a null pointer")));
    }
    // SAFETY: not null, so the size is readable.
    let size = unsafe { to.cast::<usize>().read_unaligned() };
    if size < first_version {
        return Err(Failure::refused(format!(
            "the {what} have a size of {size}; set their size to sizeof({name}), which is {}",
            size_of::<T>()
        )));
    }
    Ok(size)
}

/// Reads the size as [`size_of_result`] does; `None` if the program passed no structure.
///
/// # Safety
///
/// The contract of [`size_of_result`].
pub(crate) unsafe fn size_of_optional<T>(
    to: *const T,
    first_version: usize,
    what: &str,
    name: &str,
) -> Result<Option<usize>, Failure> {
    if to.is_null() {
        return Ok(None);
    }
    // SAFETY: the same pointer, under the same contract.
    unsafe { size_of_result(to, first_version, what, name) }.map(Some)
}

/// Writes as many bytes of a result as the program has room for, and zeros to fields that the
/// library does not know. The size that the program set stays.
///
/// # Safety
///
/// `to` is valid for writes of `size` bytes, of which the first are the size.
pub(crate) unsafe fn write_result<T>(result: T, to: *mut T, size: usize) {
    let known = size.min(size_of::<T>());
    let (from, to) = ((&raw const result).cast::<u8>(), to.cast::<u8>());
    // SAFETY: both are valid for as many bytes.
    unsafe {
        to.copy_from_nonoverlapping(from, known);
        to.add(known).write_bytes(0, size - known);
        to.cast::<usize>().write_unaligned(size);
    }
}
