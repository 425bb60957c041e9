//! Arguments of calls, as C passes them.
//!
//! Only a C caller makes these types. By the contract of the function that it calls, it promises
//! what each type says. So the methods check for null, and need no further promise.

use std::ffi::{CStr, c_char, c_uint};

use crate::code::{Code, Outcome};

/// Place for a result: null, or valid for reads and writes. For an array, the count beside it is
/// the number of its elements.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T: Copy> Out<T> {
    pub(crate) fn write(self, value: T) -> Outcome {
        if self.0.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        // SAFETY: not null, so valid for a write.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Writes a figure if the device has it.
    pub(crate) fn write_if_known(self, value: Option<T>) -> Outcome {
        self.write(value.ok_or(Code::NOT_SUPPORTED)?)
    }

    /// Reads a structure that the caller filled in partly. All its fields are numbers.
    pub(crate) fn read(self) -> Outcome<T> {
        if self.0.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        // SAFETY: not null, so valid for a read, and every pattern of bits is a number.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// Writes values into an array whose length is in `count`, and their number into `count`.
    ///
    /// # Errors
    ///
    /// `INSUFFICIENT_SIZE` if the array is too short; then `count` has the length that is needed.
    pub(crate) fn write_list(self, count: Out<c_uint>, values: &[T]) -> Outcome {
        let length = count.read()?;
        count.write(c_uint::try_from(values.len()).unwrap_or(c_uint::MAX))?;
        if values.len() > length as usize {
            return Err(Code::INSUFFICIENT_SIZE);
        }
        if self.0.is_null() && !values.is_empty() {
            return Err(Code::INVALID_ARGUMENT);
        }
        for (at, value) in values.iter().enumerate() {
            // SAFETY: not null, so valid for `length` elements, which are no fewer than the values.
            unsafe { self.0.add(at).write_unaligned(*value) };
        }
        Ok(())
    }

    /// Changes each element of an array of `length` elements.
    pub(crate) fn change_each(self, length: usize, change: impl Fn(&mut T)) -> Outcome {
        if self.0.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        for at in 0..length {
            // SAFETY: not null, so valid for `length` elements, all of whose fields are numbers.
            unsafe {
                let mut value = self.0.add(at).read_unaligned();
                change(&mut value);
                self.0.add(at).write_unaligned(value);
            }
        }
        Ok(())
    }
}

impl Out<c_char> {
    /// Writes a text with its final zero.
    ///
    /// # Errors
    ///
    /// `INSUFFICIENT_SIZE` if `length` is too small for both.
    pub(crate) fn write_text(self, length: c_uint, text: &str) -> Outcome {
        if self.0.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        if text.len() >= length as usize {
            return Err(Code::INSUFFICIENT_SIZE);
        }
        for (at, byte) in text.bytes().chain([0]).enumerate() {
            // SAFETY: not null, so valid for `length` bytes, which the text fits in.
            unsafe { self.0.add(at).write(byte as c_char) };
        }
        Ok(())
    }
}

/// Text from the caller: null or a C string.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Text(*const c_char);

impl Text {
    pub(crate) fn read(self) -> Outcome<String> {
        if self.0.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        // SAFETY: not null, so a C string.
        Ok(unsafe { CStr::from_ptr(self.0) }.to_string_lossy().into_owned())
    }
}

/// Device, `nvmlDevice_t`: a number that looks like a pointer and is never dereferenced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Handle(usize);

impl Handle {
    /// Returns the handle of a device, or of an instance of it.
    pub(crate) fn new(device: usize, instance: Option<usize>) -> Handle {
        Handle((device + 1) << 16 | instance.map_or(0, |instance| instance + 1))
    }

    /// Returns the device and the instance. For an invalid handle, the device does not exist.
    pub(crate) fn parts(self) -> (usize, Option<usize>) {
        ((self.0 >> 16).wrapping_sub(1), (self.0 & 0xffff).checked_sub(1))
    }
}
