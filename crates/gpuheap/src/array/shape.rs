//! Shapes and their sizes.

use ndarray::Dimension;

use crate::error::{Error, ErrorKind};

/// Refuses an address that is not aligned for `T`.
pub(super) fn check_alignment<T>(address: u64) -> Result<(), Error> {
    let align = align_of::<T>() as u64;
    if address.is_multiple_of(align) {
        return Ok(());
    }
    Err(ErrorKind::WrongType.error(format!(
        "elements of type {} lie at multiples of {align} bytes, and {address:#x} is none",
        std::any::type_name::<T>()
    )))
}

/// Returns the number of elements of a shape, and their bytes.
///
/// # Errors
///
/// The shape has more than [`isize::MAX`] elements or bytes. That is the limit of host arrays too.
pub(super) fn sizes<T, D: Dimension>(shape: &D) -> Result<(usize, u64), Error> {
    let too_large = || {
        ErrorKind::TooLarge.error(format!(
            "an array of shape {:?} with elements of {} bytes is larger than any memory (at most {} \
             elements and bytes); ask for fewer, and check the shape for a length that wrapped below 0",
            shape.slice(),
            size_of::<T>(),
            isize::MAX
        ))
    };
    let most = isize::MAX as usize;
    let count = shape.size_checked().filter(|count| *count <= most).ok_or_else(too_large)?;
    let bytes = count.checked_mul(size_of::<T>()).filter(|bytes| *bytes <= most);
    Ok((count, bytes.ok_or_else(too_large)? as u64))
}
