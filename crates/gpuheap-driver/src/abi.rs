//! Supports the C functions that this workspace exports. Defines types for their arguments, traits
//! for their results, and the macro `export!`.
//!
//! Values of [`Out`] and [`In`] come only from a C caller: as arguments of an exported function, or
//! by [`Arg::typed`]. The contract of the called function requires that each pointer is null, or
//! valid for the function's accesses until the function returns. A [`Handle`] comes from the C
//! caller or from [`Handle::new`]. So the methods check only for null, and are safe to call within
//! that function.

use std::ffi::{CStr, c_char};
use std::fmt;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Code that functions of a C interface return.
pub trait Code: Copy {
    /// The call succeeded.
    const SUCCESS: Self;
    /// A required pointer is null.
    const NULL: Self;
    /// A required object is null.
    const NO_OBJECT: Self = Self::NULL;
    /// The call panicked. This is a bug in the library.
    const PANICKED: Self;
}

/// Result of the Rust code in a C function, before [`answer`] converts it to the C type.
pub trait Answer {
    /// Type that the C function returns.
    type C;

    /// Converts the result to the C type.
    fn into_c(self) -> Self::C;

    /// Returns the C result for a call that panicked.
    fn panicked() -> Self::C;
}

impl<E: Code> Answer for Result<(), E> {
    type C = E;

    fn into_c(self) -> E {
        self.err().unwrap_or(E::SUCCESS)
    }

    fn panicked() -> E {
        E::PANICKED
    }
}

macro_rules! plain_answers {
    ([$($parameter:ident)?] $type:ty: $panicked:expr) => {
        impl$(<$parameter>)? Answer for $type {
            type C = $type;

            fn into_c(self) -> $type {
                self
            }

            fn panicked() -> $type {
                $panicked
            }
        }
    };
}

plain_answers!([] (): ());
plain_answers!([] usize: 0);
plain_answers!([] c_char: 0);
plain_answers!([] i32: 0);
plain_answers!([T] *const T: std::ptr::null());
plain_answers!([T] *mut T: std::ptr::null_mut());
plain_answers!([] crate::CUresult: crate::CUresult::ERROR_UNKNOWN);

impl Code for crate::CUresult {
    const SUCCESS: Self = Self::SUCCESS;
    const NULL: Self = Self::ERROR_INVALID_VALUE;
    const PANICKED: Self = Self::ERROR_UNKNOWN;
}

/// Calls `body` and returns its result as the C type. No panic reaches the C caller.
pub fn answer<A: Answer>(body: impl FnOnce() -> A) -> A::C {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(answer) => answer.into_c(),
        Err(_) => A::panicked(),
    }
}

/// Exports C functions. A row has one or more symbols, the arguments, the type of the body's
/// [`Answer`], and the body that the symbols share.
#[macro_export]
macro_rules! export {
    ($(
        $(#[$meta:meta])*
        fn $($symbol:ident)|+ ($($arg:ident: $type:ty),* $(,)?) -> $answer:ty $body:block
    )*) => {
        $($crate::export!(@each [$($symbol)+] [$(#[$meta])*] ($($arg: $type),*) $answer, $body);)*
    };
    (@each [$($symbol:ident)+] $meta:tt $arguments:tt $answer:ty, $body:block) => {
        $($crate::export!(@one $symbol $meta $arguments $answer, $body);)+
    };
    (@one $symbol:ident [$($meta:tt)*] ($($arg:ident: $type:ty),*) $answer:ty, $body:block) => {
        $($meta)*
        // SAFETY: the row has the name and signature of a function of the replaced library. No
        // other library of the process exports that name.
        #[allow(non_snake_case, clippy::too_many_arguments)]
        #[unsafe(no_mangle)]
        extern "C" fn $symbol($($arg: $type),*) -> <$answer as $crate::abi::Answer>::C {
            $crate::abi::answer::<$answer>(move || $body)
        }
    };
}

/// Pointer to a result, or to the result's elements. Some C functions also read a value through it.
#[repr(transparent)]
pub struct Out<T, E>(*mut T, PhantomData<E>);

/// Pointer to an argument, or to the argument's elements.
#[repr(transparent)]
pub struct In<T, E>(*const T, PhantomData<E>);

/// C string.
pub type Text<E> = In<c_char, E>;

/// Pointer to an object that the library made with [`Handle::new`]. The program keeps the pointer.
#[repr(transparent)]
pub struct Handle<T, E>(*mut T, PhantomData<E>);

// Implements `Clone` and `Copy` by hand: the derives would require that `T` and `E` are `Copy`.
macro_rules! copies {
    ($($type:ident)*) => {$(
        impl<T, E> Clone for $type<T, E> {
            fn clone(&self) -> Self {
                *self
            }
        }

        impl<T, E> Copy for $type<T, E> {}

        impl<T, E> $type<T, E> {
            /// Returns `true` for a null pointer.
            pub fn is_null(self) -> bool {
                self.0.is_null()
            }
        }

        impl<T, E> fmt::Debug for $type<T, E> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({:p})", stringify!($type), self.0)
            }
        }
    )*};
}

copies!(Out In Handle);

impl<T, E> Out<T, E> {
    /// Null pointer, for a result that the caller does not take.
    pub const NULL: Self = Self(std::ptr::null_mut(), PhantomData);

    /// Returns the pointer to the `index`-th element of an array.
    pub fn at(self, index: usize) -> Self {
        Self(self.0.wrapping_add(index), PhantomData)
    }

    /// Returns the same pointer for a result of another type.
    ///
    /// # Safety
    ///
    /// By the contract of the called function, the pointer points to a `U`. An attribute or a
    /// version that the C caller passed may decide that type.
    pub unsafe fn cast<U>(self) -> Out<U, E> {
        Out(self.0.cast(), PhantomData)
    }

    /// Returns the pointer's address as a number, and exposes the pointer's provenance.
    pub fn address(self) -> u64 {
        self.0.expose_provenance() as u64
    }
}

impl<T, E: Code> Out<T, E> {
    /// Returns an error if the pointer is null.
    pub fn require(self) -> Result<(), E> {
        if self.0.is_null() { Err(E::NULL) } else { Ok(()) }
    }

    /// Writes the result.
    pub fn write(self, value: T) -> Result<(), E> {
        self.require()?;
        // SAFETY: the pointer is not null, so the caller keeps it valid for a write. Untyped
        // results that were cast may be unaligned.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Writes the result. If the pointer is null, does nothing: the caller takes no result.
    pub fn write_if_wanted(self, value: T) -> Result<(), E> {
        if self.is_null() { Ok(()) } else { self.write(value) }
    }

    /// Writes elements to an array that has room for them.
    pub fn write_all(self, values: impl IntoIterator<Item = T>) -> Result<(), E> {
        values.into_iter().enumerate().try_for_each(|(index, value)| self.at(index).write(value))
    }

    /// Reads the value that the pointer points to.
    pub fn get(self) -> Result<T, E>
    where
        T: Copy,
    {
        In(self.0.cast_const(), PhantomData).get()
    }
}

impl<T, E: Code> Out<*mut T, E> {
    /// Reads a pointer to a result from an array of such pointers.
    pub fn follow(self) -> Result<Out<T, E>, E> {
        self.get().map(|pointer| Out(pointer, PhantomData))
    }
}

impl<T, E> In<T, E> {
    /// Returns the pointer to the `index`-th element of an array.
    pub fn at(self, index: usize) -> Self {
        Self(self.0.wrapping_add(index), PhantomData)
    }

    /// Returns the same pointer for an argument of another type.
    ///
    /// # Safety
    ///
    /// By the contract of the called function, the pointer points to a `U`. An attribute or a
    /// version that the C caller passed may decide that type.
    pub unsafe fn cast<U>(self) -> In<U, E> {
        In(self.0.cast(), PhantomData)
    }

    /// Returns the pointer's address. A copy uses it as the address of host memory.
    pub fn address(self) -> u64 {
        self.0.expose_provenance() as u64
    }
}

impl<T: Copy, E: Code> In<T, E> {
    /// Reads the argument.
    pub fn get(self) -> Result<T, E> {
        if self.0.is_null() {
            return Err(E::NULL);
        }
        // SAFETY: the pointer is not null, so the caller keeps it valid for a read. The read needs
        // no alignment.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// Reads an array of `count` elements. If `count` is 0, the pointer may be null.
    pub fn get_all(self, count: usize) -> Result<Vec<T>, E> {
        (0..count)
            .map(|index| if self.0.is_null() { self.get() } else { self.at(index).get() })
            .collect()
    }
}

impl<E: Code> Text<E> {
    /// Reads the string.
    pub fn text(self) -> Result<String, E> {
        if self.0.is_null() {
            return Err(E::NULL);
        }
        // SAFETY: the pointer is not null, so it points to a C string of the caller.
        Ok(unsafe { CStr::from_ptr(self.0) }.to_string_lossy().into_owned())
    }
}

impl<T, E> Handle<T, E> {
    /// Null pointer, for no object.
    pub const NULL: Self = Self(std::ptr::null_mut(), PhantomData);

    /// Allocates an object that lives until [`end`](Handle::end) is called.
    pub fn new(object: T) -> Self {
        Self(Box::into_raw(Box::new(object)), PhantomData)
    }
}

impl<T, E: Code> Handle<T, E> {
    /// Calls `read` with the object.
    pub fn read<R>(self, read: impl FnOnce(&T) -> R) -> Result<R, E> {
        // SAFETY: the caller passes null or a live object that `new` made. No thread changes the
        // object during the call.
        unsafe { self.0.as_ref() }.map(read).ok_or(E::NO_OBJECT)
    }

    /// Calls `change` with the object.
    pub fn change<R>(self, change: impl FnOnce(&mut T) -> R) -> Result<R, E> {
        // SAFETY: the caller passes null or a live object that `new` made. No other thread uses the
        // object during the call.
        unsafe { self.0.as_mut() }.map(change).ok_or(E::NO_OBJECT)
    }

    /// Destroys the object.
    pub fn end(self) -> Result<(), E> {
        if self.0.is_null() {
            return Err(E::NO_OBJECT);
        }
        // SAFETY: the caller passes a live object that `new` made, and does not use the object
        // afterwards.
        drop(unsafe { Box::from_raw(self.0) });
        Ok(())
    }
}

/// Conversion to the driver's argument type. [`Out`] and [`In`] become raw pointers.
pub trait Raw {
    /// Type of the driver's argument.
    type Argument;

    /// Returns the driver's argument.
    fn raw(self) -> Self::Argument;
}

/// Conversion from the C type of an argument to the type that the Rust code uses.
pub trait Arg {
    /// Type of the argument in Rust. For a pointer, it is [`Out`] or [`In`].
    type Typed;

    /// Converts the argument of a C caller.
    ///
    /// # Safety
    ///
    /// If the argument is a pointer, it is null, or valid for the called function's accesses until
    /// that function returns. It points to one element, or to as many as the function accesses.
    unsafe fn typed(self) -> Self::Typed;
}

impl<T> Arg for *mut T {
    type Typed = Out<T, crate::CUresult>;

    unsafe fn typed(self) -> Self::Typed {
        Out(self, PhantomData)
    }
}

impl<T> Arg for *const T {
    type Typed = In<T, crate::CUresult>;

    unsafe fn typed(self) -> Self::Typed {
        In(self, PhantomData)
    }
}

/// Replacement of the default stream, if each thread has a separate default stream.
pub trait PerThread {
    /// Returns the argument with the null stream replaced by the calling thread's default stream.
    /// Other arguments stay the same.
    fn per_thread(self) -> Self;
}

impl PerThread for crate::CUstream {
    fn per_thread(self) -> Self {
        if self.is_null() { Self::PER_THREAD } else { self }
    }
}

/// Implements conversions that return the argument unchanged, or evaluate the given expression.
macro_rules! unchanged {
    (Raw: $([$($parameter:ident)*] $type:ty => $argument:ty, $value:ident: $raw:expr;)*) => {$(
        impl<$($parameter),*> Raw for $type {
            type Argument = $argument;

            fn raw(self) -> $argument {
                let $value = self;
                $raw
            }
        }
    )*};
    (PerThread: $([$($parameter:ident)*] $type:ty;)*) => {$(
        impl<$($parameter),*> PerThread for $type {
            fn per_thread(self) -> Self {
                self
            }
        }
    )*};
    (Arg: $($type:ty),*) => {$(
        impl Arg for $type {
            type Typed = $type;

            unsafe fn typed(self) -> $type {
                self
            }
        }
    )*};
    (all: $($type:ty),*) => {
        unchanged! { Raw: $([] $type => $type, value: value;)* }
        unchanged! { PerThread: $([] $type;)* }
        unchanged! { Arg: $($type),* }
    };
}

unchanged! {
    Raw:
    [T E] Out<T, E> => *mut T, place: place.0;
    [T E] In<T, E> => *const T, place: place.0;
    [T] *mut T => *mut T, pointer: pointer;
    [T] *const T => *const T, pointer: pointer;
    [T] &T => *const T, value: value;
    [T] &mut T => *mut T, value: value;
    [] crate::CUstream => crate::CUstream, stream: stream;
}

unchanged! {
    PerThread:
    [T E] Out<T, E>;
    [T E] In<T, E>;
}

unchanged! {
    Arg:
    u16, crate::CUresult, crate::CUstream, crate::CUmodule, crate::CUoccupancyB2DSize,
    crate::CUuserObject
}

unchanged! {
    all:
    u8, i32, u32, u64, usize, crate::CUcontext, crate::CUevent, crate::CUfunction,
    crate::CUfunction_attribute, crate::CUgraph, crate::CUgraphExec, crate::CUgraphMem_attribute,
    crate::CUhostFn, crate::CUkernel, crate::CUlibrary, crate::CUmemLocation,
    crate::CUmemPool_attribute, crate::CUmemoryPool, crate::CUdevice_attribute,
    crate::CUpointer_attribute, crate::CUstreamCallback, crate::CUstreamCaptureMode
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CUresult;

    type Outcome<T = ()> = Result<T, CUresult>;

    #[test]
    fn panic_becomes_code() {
        assert_eq!(answer(|| -> Outcome { panic!("on purpose") }), CUresult::ERROR_UNKNOWN);
        assert_eq!(
            answer(|| -> Outcome { Err(CUresult::ERROR_NOT_FOUND) }),
            CUresult::ERROR_NOT_FOUND
        );
        assert_eq!(answer(|| -> Outcome { Ok(()) }), CUresult::SUCCESS);
    }

    #[test]
    fn null_pointer_is_refused() {
        assert_eq!(Out::<u8, CUresult>::NULL.write(1), Err(CUresult::ERROR_INVALID_VALUE));
        assert_eq!(Out::<u8, CUresult>::NULL.write_if_wanted(1), Ok(()));
        let mut value = 1_u8;
        // SAFETY: the pointer is valid until the end of the test.
        let place = unsafe { (&raw mut value).typed() };
        assert_eq!((place.write(2), place.get()), (Ok(()), Ok(2)));
    }

    #[test]
    fn object_lives_until_its_end() {
        let handle = Handle::<_, CUresult>::new(1);
        assert_eq!(handle.change(|value| *value += 1), Ok(()));
        assert_eq!(handle.read(|value| *value), Ok(2));
        assert_eq!(handle.end(), Ok(()));
        assert_eq!(Handle::<u8, CUresult>::NULL.end(), Err(CUresult::ERROR_INVALID_VALUE));
    }
}
