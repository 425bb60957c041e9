//! Argument types of NVML's functions, and helpers that write results.

use std::ffi::{c_char, c_uint};

use gpuheap_driver::abi;

use crate::code::{Code, Outcome, fail_if};

pub(crate) type Out<T> = abi::Out<T, Code>;
pub(crate) type Text = abi::Text<Code>;

impl abi::Code for Code {
    const SUCCESS: Code = Code::SUCCESS;
    const NULL: Code = Code::INVALID_ARGUMENT;
    const PANICKED: Code = Code::UNKNOWN;
}

/// Device handle, `nvmlDevice_t`. Programs see a pointer, but the handle is an integer that is
/// never dereferenced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Handle(usize);

impl Handle {
    pub(crate) fn new(device: usize, instance: Option<usize>) -> Handle {
        Handle((device + 1) << 16 | instance.map_or(0, |instance| instance + 1))
    }

    /// Returns the indices of the device and the instance. For an invalid handle, the device index
    /// is out of range.
    pub(crate) fn indices(self) -> (usize, Option<usize>) {
        ((self.0 >> 16).wrapping_sub(1), (self.0 & 0xffff).checked_sub(1))
    }
}

/// Writes `value`; returns `NOT_SUPPORTED` if the value is `None`.
pub(crate) fn write_if_known<T>(place: Out<T>, value: Option<T>) -> Outcome {
    place.write(value.ok_or(Code::NOT_SUPPORTED)?)
}

/// Writes `values` into an array, and the number of values into `count`. On entry, `count` is the
/// length of the array.
pub(crate) fn write_list<T: Copy>(place: Out<T>, count: Out<c_uint>, values: &[T]) -> Outcome {
    let length = count.get()?;
    count.write(c_uint::try_from(values.len()).unwrap_or(c_uint::MAX))?;
    fail_if(values.len() > length as usize, Code::INSUFFICIENT_SIZE)?;
    place.write_all(values.iter().copied())
}

/// Writes a text with its final zero.
pub(crate) fn write_text(place: Out<c_char>, length: c_uint, text: &str) -> Outcome {
    place.require()?;
    fail_if(text.len() >= length as usize, Code::INSUFFICIENT_SIZE)?;
    place.write_all(text.bytes().chain([0]).map(|byte| byte as c_char))
}
