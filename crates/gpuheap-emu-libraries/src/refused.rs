//! Libraries that load, and refuse their work.

use std::ffi::c_int;

use crate::report;

macro_rules! refusals {
    ($library:literal, $code:literal, [$($name:ident)*]) => {$(
        /// Returns the library's code for what is not supported.
        // SAFETY: the name is the library's, and this library replaces it. The function reads none
        // of the caller's arguments, which the caller's side removes in every C ABI of Unix.
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> c_int {
            report::refused($library, stringify!($name));
            $code
        }
    )*};
}

refused_functions!(refusals);
