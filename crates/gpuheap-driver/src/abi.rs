//! C functions that this workspace exports: their arguments, their codes, and one macro.
//!
//! Only a C caller makes [`Out`], [`In`] and [`Handle`]. By the contract of the function that it
//! calls, each is null, or valid for the accesses of that function until it returns. So the methods
//! check for null, and are safe to call within that function.

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
    /// The call panicked: a bug in the library.
    const PANICKED: Self;
}

/// Result of a C function, as the Rust code of the function has it.
pub trait Answer {
    /// Type that the C function returns.
    type C;

    /// Returns the result for C.
    fn into_c(self) -> Self::C;

    /// Returns the result of a call that panicked.
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

/// Returns the result of `body` for C. No panic reaches the C caller.
pub fn answer<A: Answer>(body: impl FnOnce() -> A) -> A::C {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(answer) => answer.into_c(),
        Err(_) => A::panicked(),
    }
}

/// Exports C functions. Each row has the symbols that share the body, the arguments, the type of
/// the body's [`Answer`], and the body.
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
        // SAFETY: the row has the name and the type of a function of the C library that the
        // exporting library replaces. No other library of the process has the name.
        #[allow(non_snake_case, clippy::too_many_arguments)]
        #[unsafe(no_mangle)]
        extern "C" fn $symbol($($arg: $type),*) -> <$answer as $crate::abi::Answer>::C {
            $crate::abi::answer::<$answer>(move || $body)
        }
    };
}

/// Place for a result, or for the elements of one. Also read, where C passes a value by it.
#[repr(transparent)]
pub struct Out<T, E>(*mut T, PhantomData<E>);

/// Place of an argument, or of its elements.
#[repr(transparent)]
pub struct In<T, E>(*const T, PhantomData<E>);

/// C string.
pub type Text<E> = In<c_char, E>;

/// Object that the library made by [`Handle::new`], and that the program holds.
#[repr(transparent)]
pub struct Handle<T, E>(*mut T, PhantomData<E>);

// Not derived: the derive would also require that the parameters are `Copy`.
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
    /// Place that the caller left out.
    pub const NULL: Self = Self(std::ptr::null_mut(), PhantomData);

    /// Calls `call` with a place that has `value`, and returns the result and the value after it.
    pub fn local<R>(mut value: T, call: impl FnOnce(Self) -> R) -> (R, T) {
        let result = call(Self(&mut value, PhantomData));
        (result, value)
    }

    /// Returns the `index`-th element of an array.
    pub fn at(self, index: usize) -> Self {
        Self(self.0.wrapping_add(index), PhantomData)
    }

    /// Returns the place for a result of another type, as C's attribute or version says.
    pub fn cast<U>(self) -> Out<U, E> {
        Out(self.0.cast(), PhantomData)
    }

    /// Returns the address itself, for host memory that a copy uses.
    pub fn address(self) -> u64 {
        self.0.expose_provenance() as u64
    }
}

impl<T, E: Code> Out<T, E> {
    /// Refuses a null pointer.
    pub fn require(self) -> Result<(), E> {
        if self.0.is_null() { Err(E::NULL) } else { Ok(()) }
    }

    /// Writes the result.
    pub fn write(self, value: T) -> Result<(), E> {
        self.require()?;
        // SAFETY: not null, so the caller keeps it valid for a write. C ensures no alignment for
        // untyped results that are cast to their type.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Writes a result that the caller may leave out by a null pointer.
    pub fn write_if_wanted(self, value: T) -> Result<(), E> {
        if self.is_null() { Ok(()) } else { self.write(value) }
    }

    /// Writes the elements of an array with room for them.
    pub fn write_all(self, values: impl IntoIterator<Item = T>) -> Result<(), E> {
        values.into_iter().enumerate().try_for_each(|(index, value)| self.at(index).write(value))
    }

    /// Returns the value at the place.
    pub fn get(self) -> Result<T, E>
    where
        T: Copy,
    {
        In(self.0.cast_const(), PhantomData).get()
    }
}

impl<T, E: Code> Out<*mut T, E> {
    /// Returns the place that an element of an array of result pointers points to.
    pub fn follow(self) -> Result<Out<T, E>, E> {
        self.get().map(|pointer| Out(pointer, PhantomData))
    }
}

impl<T, E> In<T, E> {
    /// Returns the `index`-th element of an array.
    pub fn at(self, index: usize) -> Self {
        Self(self.0.wrapping_add(index), PhantomData)
    }

    /// Returns the place of an argument of another type, as C's attribute or version says.
    pub fn cast<U>(self) -> In<U, E> {
        In(self.0.cast(), PhantomData)
    }

    /// Returns the address itself, for host memory that a copy uses.
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
        // SAFETY: not null, so the caller keeps it valid for a read, of any alignment.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// Reads an array of `count` elements. A null pointer is fine if there are none.
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
        // SAFETY: not null, so a C string of the caller.
        Ok(unsafe { CStr::from_ptr(self.0) }.to_string_lossy().into_owned())
    }
}

impl<T, E> Handle<T, E> {
    /// No object.
    pub const NULL: Self = Self(std::ptr::null_mut(), PhantomData);

    /// Makes an object that lives until [`end`](Handle::end).
    pub fn new(object: T) -> Self {
        Self(Box::into_raw(Box::new(object)), PhantomData)
    }
}

impl<T, E: Code> Handle<T, E> {
    /// Calls `read` with the object.
    pub fn read<R>(self, read: impl FnOnce(&T) -> R) -> Result<R, E> {
        // SAFETY: the caller passes null or an object of `new` that has not ended, and no thread
        // changes it during the call.
        unsafe { self.0.as_ref() }.map(read).ok_or(E::NO_OBJECT)
    }

    /// Calls `change` with the object.
    pub fn change<R>(self, change: impl FnOnce(&mut T) -> R) -> Result<R, E> {
        // SAFETY: the caller passes null or an object of `new` that has not ended, and no other
        // thread uses it during the call.
        unsafe { self.0.as_mut() }.map(change).ok_or(E::NO_OBJECT)
    }

    /// Ends the object.
    pub fn end(self) -> Result<(), E> {
        if self.0.is_null() {
            return Err(E::NO_OBJECT);
        }
        // SAFETY: the caller passes an object of `new` that has not ended, and does not use it
        // afterwards.
        drop(unsafe { Box::from_raw(self.0) });
        Ok(())
    }
}

/// An argument as a function of the driver takes it: places become pointers.
pub trait Raw {
    /// Type of the driver's argument.
    type Argument;

    /// Returns the driver's argument.
    fn raw(self) -> Self::Argument;
}

/// An argument as C passes it, and as Rust code works with it.
pub trait Arg {
    /// Type of the argument in Rust: a place for a pointer.
    type Typed;

    /// Takes the argument of a C caller.
    ///
    /// # Safety
    ///
    /// A pointer is null, or valid for the accesses of the called function until that returns.
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

/// An argument of a function for programs with a default stream for each thread.
pub trait PerThread {
    /// Returns the argument as the function for one default stream takes it: the null stream
    /// becomes the thread's own default stream.
    fn per_thread(self) -> Self;
}

impl PerThread for crate::CUstream {
    fn per_thread(self) -> Self {
        if self.is_null() { Self::PER_THREAD } else { self }
    }
}

/// Implements a trait for arguments that stay the same.
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
        let (written, value) = Out::<u8, CUresult>::local(1, |place| place.write(2));
        assert_eq!((written, value), (Ok(()), 2));
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
