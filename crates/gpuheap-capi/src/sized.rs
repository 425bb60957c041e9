//! Structures that begin with their size, so that programs and libraries of different versions work
//! together.

use std::mem::size_of;

use crate::entry::Failure;

/// A structure that receives results. Its first field is its size.
pub(crate) trait SizedResult {
    /// Size of the structure's first version. A program passes at least this size, whichever
    /// version of the structure it was compiled with.
    const FIRST: usize;
    /// Words by which error texts name the structure's contents.
    const CONTENTS: &'static str;
    const NAME: &'static str;
}

/// Implements [`SizedResult`] for a structure. `$last` is the last field of the structure's first
/// version.
macro_rules! sized {
    ($structure:ident, $last:ident: $type:ty, $contents:literal) => {
        impl crate::sized::SizedResult for $structure {
            const FIRST: usize = std::mem::offset_of!($structure, $last) + size_of::<$type>();
            const CONTENTS: &'static str = $contents;
            const NAME: &'static str = stringify!($structure);
        }
    };
}
pub(crate) use sized;

/// Reads the size that the program set in a structure for results.
///
/// # Safety
///
/// `to` is null or valid for reads of its first field, the size.
pub(crate) unsafe fn size_of_result<T: SizedResult>(to: *const T) -> Result<usize, Failure> {
    if to.is_null() {
        return Err(Failure::refused(format!("where the {} go is a null pointer", T::CONTENTS)));
    }
    // SAFETY: `to` is not null, so its size field is readable.
    let size = unsafe { to.cast::<usize>().read_unaligned() };
    if size < T::FIRST {
        return Err(Failure::refused(format!(
            "the {} have a size of {size}; set their size to sizeof({}), which is {}",
            T::CONTENTS,
            T::NAME,
            size_of::<T>()
        )));
    }
    Ok(size)
}

/// Reads the size as [`size_of_result`] does. Returns `None` if `to` is null.
///
/// # Safety
///
/// The caller keeps the contract of [`size_of_result`].
pub(crate) unsafe fn size_of_optional<T: SizedResult>(
    to: *const T,
) -> Result<Option<usize>, Failure> {
    if to.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller keeps the contract of `size_of_result` for `to`.
    unsafe { size_of_result(to) }.map(Some)
}

/// Writes as many bytes of a result as the program has room for. Writes zeros to fields that the
/// library does not know. Does not change the size that the program set.
///
/// # Safety
///
/// `to` is valid for writes of `size` bytes. The first field is the size.
pub(crate) unsafe fn write_result<T>(result: T, to: *mut T, size: usize) {
    let known = size.min(size_of::<T>());
    let (from, to) = ((&raw const result).cast::<u8>(), to.cast::<u8>());
    // SAFETY: `from` is valid for reads of `known` bytes, and `to` for writes of `size` bytes.
    unsafe {
        to.copy_from_nonoverlapping(from, known);
        to.add(known).write_bytes(0, size - known);
        to.cast::<usize>().write_unaligned(size);
    }
}
