//! Shapes and their sizes.

use ndarray::Dimension;

use crate::error::{Error, ErrorKind};

/// The number of elements of a shape and their bytes.
///
/// # Errors
///
/// More than any memory holds: [`isize::MAX`] elements or bytes, as for host arrays.
pub(super) fn sizes<T, D: Dimension>(shape: &D) -> Result<(usize, u64), Error> {
    let too_large = || {
        Error::from(ErrorKind::Refused(format!(
            "an array of shape {:?} with elements of {} bytes is larger than any memory",
            shape.slice(),
            size_of::<T>()
        )))
    };
    let most = isize::MAX as usize;
    let count = shape.size_checked().filter(|count| *count <= most).ok_or_else(too_large)?;
    let bytes = count.checked_mul(size_of::<T>()).filter(|bytes| *bytes <= most);
    Ok((count, bytes.ok_or_else(too_large)? as u64))
}
