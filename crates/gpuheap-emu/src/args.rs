//! Arguments of a driver call.
//!
//! A C pointer becomes an [`In`] or an [`Out`] at the edge, where the contract of
//! [`Driver`](gpuheap_driver::Driver) holds. The rest of the emulator reads and writes through them
//! in safe code. A null pointer gives `INVALID_VALUE` and is never followed.

use std::ffi::c_char;

use gpuheap_driver::{CUresult, abi};

use crate::Outcome;

pub(crate) type Out<T> = abi::Out<T, CUresult>;
pub(crate) type In<T> = abi::In<T, CUresult>;

/// Writes a string, cut to `length` bytes with the final zero.
pub(crate) fn write_text(place: Out<c_char>, text: &str, length: i32) -> Outcome {
    let Ok(length @ 1..) = usize::try_from(length) else {
        return Err(CUresult::ERROR_INVALID_VALUE);
    };
    let text = &text.as_bytes()[..text.len().min(length - 1)];
    place.write_all(text.iter().chain(&[0]).map(|byte| byte.cast_signed()))
}
