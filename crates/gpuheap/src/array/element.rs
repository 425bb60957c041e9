//! Elements of arrays.

use bytemuck::{CheckedBitPattern, NoUninit};

use crate::error::{Error, ErrorKind};

/// Plain data with the same meaning on the device and the host:
///
/// * all integers and floats, and `bool`
/// * the numbers of `half` and `num_complex` (with their `bytemuck` features)
/// * arrays of these
/// * structs that derive `bytemuck::Pod`, or `bytemuck::NoUninit` and
///   `bytemuck::CheckedBitPattern`; for these, depend on `bytemuck` with its feature `derive`
///
/// Programs do not implement this trait. A type is an element if it has no padding and `bytemuck`
/// knows its valid bit patterns. Elements are checked when they are read back. For example, if a
/// byte of a `bool` is neither 0 nor 1, the read returns an error.
///
/// A type with heap pointers is not plain data. Upload the data that it points to, or adapt the
/// structure that holds it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be an element of a device array",
    label = "not plain data",
    note = "elements are plain data with no pointers and no padding: numbers, `bool`, arrays of them, and structs that derive `bytemuck::Pod` (with bytemuck's feature `derive`)",
    note = "what a `Vec`, `String` or `Box` points to lives in the host's memory: upload its contents as an array of its own"
)]
pub trait Element: CheckedBitPattern + NoUninit + Send + Sync {}

#[diagnostic::do_not_recommend]
impl<T: CheckedBitPattern + NoUninit + Send + Sync> Element for T {}

/// Returns the elements as bytes; empty for elements of zero size.
pub(crate) fn bytes_of<T: Element>(elements: &[T]) -> &[u8] {
    if size_of::<T>() == 0 { &[] } else { bytemuck::cast_slice(elements) }
}

/// Returns an error if bits that were read from the device are not valid elements.
pub(super) fn check_bits<T: Element>(bits: &[T::Bits]) -> Result<(), Error> {
    match bits.iter().position(|bits| !T::is_valid_bit_pattern(bits)) {
        None => Ok(()),
        Some(at) => Err(ErrorKind::InvalidData.error(format!(
            "element {at} of the array is no valid {}: its bytes ({}..{}) were written as something \
             else; write that element again, or read the bytes with reinterpret::<u8>()",
            std::any::type_name::<T>(),
            at * size_of::<T>(),
            (at + 1) * size_of::<T>(),
        ))),
    }
}
