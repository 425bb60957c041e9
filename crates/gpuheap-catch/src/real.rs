//! Finds and calls the real functions of CUDA's libraries.
//!
//! A lookup covers the libraries after this library in the loader's order. Libraries that a program
//! loaded with `RTLD_LOCAL`, as Python does, are not in that order. A function in such a library is
//! found by the library's name, or at the address that the program looked up.

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::loader;

/// A function of CUDA's libraries, found at its first use.
#[derive(Debug)]
pub struct Real {
    symbol: &'static CStr,
    libraries: &'static [&'static CStr],
    address: AtomicPtr<c_void>,
}

impl Real {
    /// Makes an unresolved function. `symbol` ends with a NUL byte. `libraries` lists the file
    /// names of the libraries to search.
    pub const fn new(symbol: &'static str, libraries: &'static [&'static CStr]) -> Real {
        let symbol = match CStr::from_bytes_with_nul(symbol.as_bytes()) {
            Ok(symbol) => symbol,
            Err(_) => c"",
        };
        Real { symbol, libraries, address: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Returns the function's address; `None` if no loaded library contains the function.
    #[inline]
    pub fn address(&self) -> Option<*mut c_void> {
        let known = self.address.load(Ordering::Relaxed);
        if known.is_null() { self.find() } else { Some(known) }
    }

    #[cold]
    fn find(&self) -> Option<*mut c_void> {
        let mut found = loader::next(self.symbol);
        for library in self.libraries {
            if found.is_none() {
                found = loader::in_loaded(library, self.symbol);
            }
        }
        found.inspect(|found| self.address.store(*found, Ordering::Relaxed))
    }

    /// If no address is known yet, records an address that the program looked up. Keeps the library
    /// loaded even if the program closes it.
    pub(crate) fn note(&self, address: *mut c_void) {
        let null = ptr::null_mut();
        let noted =
            self.address.compare_exchange(null, address, Ordering::Relaxed, Ordering::Relaxed);
        if noted.is_ok() {
            loader::pin(address);
        }
    }

    /// Returns `true` if `address` is the address of this symbol in the library that contains
    /// `address`.
    pub(crate) fn is_at(&self, address: *mut c_void) -> bool {
        loader::in_library_of(address, self.symbol) == Some(address)
    }
}

/// For each row of a table, makes a function that calls the real function. A row is `library [how]
/// symbol (arguments);`. The calling module needs a module `reals` with the statics that
/// `real_cells!` makes.
#[macro_export]
macro_rules! real_functions {
    ($($library:ident [$($how:tt)*] $symbol:ident ($($arg:ident: $type:ty),*);)*) => {
        $(
            #[allow(non_snake_case, reason = "named as in C")]
            #[allow(dead_code, reason = "a per-thread twin may be passed on as the function")]
            pub(crate) fn $symbol($($arg: $type),*) -> CUresult {
                match reals::$symbol.address() {
                    // SAFETY: the symbol has this signature in CUDA's headers. The arguments come
                    // from the program's own call, or are handles and pointers that are valid by
                    // their types. CUDA's libraries are not unloaded.
                    Some(found) => unsafe {
                        let function: unsafe extern "C" fn($($type),*) -> CUresult =
                            ::std::mem::transmute(found);
                        function($($arg),*)
                    },
                    None => CUresult::ERROR_NOT_FOUND,
                }
            }
        )*
    };
}

/// Makes a static [`Real`] for each row of a table. The rows are as for `real_functions!`. For each
/// library, the module `libraries` has a constant with the library's file names.
#[macro_export]
macro_rules! real_cells {
    ($($library:ident [$($how:tt)*] $symbol:ident ($($arg:ident: $type:ty),*);)*) => {
        $(
            #[allow(non_upper_case_globals, reason = "named as in C")]
            pub(super) static $symbol: $crate::Real = $crate::Real::new(
                concat!(stringify!($symbol), "\0"),
                libraries::$library,
            );
        )*
    };
}

/// Declares the library's exported symbols, and makes a function `find` for
/// [`Catcher`](crate::Catcher).
#[macro_export]
macro_rules! own_symbols {
    ($($library:ident [$($how:tt)*] $symbol:ident ($($arg:ident: $type:ty),*);)*) => {
        // SAFETY: the table declares the symbols with their types.
        unsafe extern "C" {
            $(fn $symbol($($arg: $type),*) -> CUresult;)*
        }

        /// Returns this library's function that replaces `symbol`, and the `Real` that calls CUDA's
        /// function.
        pub(super) fn find(symbol: &str) -> Option<(*mut c_void, &'static $crate::Real)> {
            match symbol {
                $(stringify!($symbol) => Some(($symbol as *mut c_void, &reals::$symbol)),)*
                _ => None,
            }
        }
    };
}
