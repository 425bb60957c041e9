//! Arguments of a driver call.
//!
//! A C pointer becomes an [`In`] or an [`Out`] at the edge, where the contract of
//! [`Driver`](gpuheap_driver::Driver) holds. The rest of the emulator reads and writes through them
//! in safe code. A null pointer gives an error and is never followed.

use std::ffi::{CStr, c_char, c_void};

use gpuheap_driver::*;

use crate::Outcome;

/// One argument of the driver API.
pub(crate) trait Arg {
    /// Argument as the emulator works with it.
    type Checked;

    /// Wraps the argument.
    ///
    /// # Safety
    ///
    /// A pointer is null, or valid during the call for what the called function does with it.
    unsafe fn checked(self) -> Self::Checked;
}

// Not derived: the derive would also require `T: Clone`.
impl<T> Clone for Out<T> {
    fn clone(&self) -> Out<T> {
        *self
    }
}

impl<T> Copy for Out<T> {}

impl<T> Clone for In<T> {
    fn clone(&self) -> In<T> {
        *self
    }
}

impl<T> Copy for In<T> {}

/// Destination of a result.
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Destination that the caller left out.
    pub(crate) const NULL: Out<T> = Out(std::ptr::null_mut());

    /// Writes the result. A null pointer gives `INVALID_VALUE`.
    pub(crate) fn write(self, value: T) -> Outcome {
        if self.0.is_null() {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        // SAFETY: not null, and valid for writes by the contract of `Arg::checked`. C promises no
        // alignment for the untyped results that are cast to their type.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Writes a result that the caller may leave out by a null pointer.
    pub(crate) fn write_if_wanted(self, value: T) -> Outcome {
        if self.is_null() { Ok(()) } else { self.write(value) }
    }

    /// Refuses a null pointer with `INVALID_VALUE`.
    pub(crate) fn require(self) -> Outcome {
        if self.0.is_null() { Err(CUresult::ERROR_INVALID_VALUE) } else { Ok(()) }
    }

    /// Returns the value at the destination.
    pub(crate) fn get(self) -> Outcome<T>
    where
        T: Copy,
    {
        In(self.0.cast_const()).get()
    }

    /// Returns the `index`-th element of an array.
    pub(crate) fn at(self, index: usize) -> Out<T> {
        Out(self.0.wrapping_add(index))
    }

    pub(crate) fn cast<U>(self) -> Out<U> {
        Out(self.0.cast())
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Returns the address itself, for host memory that a copy uses.
    pub(crate) fn address(self) -> u64 {
        self.0.expose_provenance() as u64
    }
}

impl Out<*mut c_void> {
    /// Returns the destination that an element of an array of result pointers points to.
    pub(crate) fn follow(self) -> Outcome<Out<c_void>> {
        self.get().map(Out)
    }
}

impl Out<c_char> {
    /// Writes a string, cut to `length` bytes with the final zero.
    pub(crate) fn write_text(self, text: &str, length: i32) -> Outcome {
        let Ok(length @ 1..) = usize::try_from(length) else {
            return Err(CUresult::ERROR_INVALID_VALUE);
        };
        let text = &text.as_bytes()[..text.len().min(length - 1)];
        for (index, byte) in text.iter().chain(&[0]).enumerate() {
            self.at(index).write(byte.cast_signed())?;
        }
        Ok(())
    }
}

/// Source of an argument.
pub(crate) struct In<T>(*const T);

impl<T> In<T> {
    /// Reads the argument. A null pointer gives `INVALID_VALUE`.
    pub(crate) fn get(self) -> Outcome<T>
    where
        T: Copy,
    {
        if self.0.is_null() {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        // SAFETY: not null, and valid for reads by the contract of `Arg::checked`.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// Returns the `index`-th element of an array.
    pub(crate) fn at(self, index: usize) -> In<T> {
        In(self.0.wrapping_add(index))
    }

    pub(crate) fn cast<U>(self) -> In<U> {
        In(self.0.cast())
    }

    /// Returns the address itself, for host memory that a copy uses.
    pub(crate) fn address(self) -> u64 {
        self.0.expose_provenance() as u64
    }
}

impl In<c_char> {
    /// Returns the C string.
    pub(crate) fn text(self) -> Outcome<String> {
        if self.0.is_null() {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        // SAFETY: not null, and a C string by the contract of `Arg::checked`.
        Ok(unsafe { CStr::from_ptr(self.0) }.to_string_lossy().into_owned())
    }
}

impl<T> Arg for *mut T {
    type Checked = Out<T>;
    unsafe fn checked(self) -> Out<T> {
        Out(self)
    }
}

impl<T> Arg for *const T {
    type Checked = In<T>;
    unsafe fn checked(self) -> In<T> {
        In(self)
    }
}

macro_rules! plain {
    ($($type:ty),*) => {$(
        impl Arg for $type {
            type Checked = $type;
            unsafe fn checked(self) -> $type {
                self
            }
        }
    )*};
}

plain!(
    i32,
    u8,
    u16,
    u32,
    u64,
    usize,
    CUresult,
    CUcontext,
    CUstream,
    CUevent,
    CUmemoryPool,
    CUmodule,
    CUfunction,
    CUfunction_attribute,
    CUkernel,
    CUlibrary,
    CUoccupancyB2DSize,
    CUgraph,
    CUgraphExec,
    CUgraphMem_attribute,
    CUuserObject,
    CUstreamCaptureMode,
    CUdevice_attribute,
    CUpointer_attribute,
    CUmemPool_attribute,
    CUmemLocation,
    CUhostFn,
    CUstreamCallback
);
