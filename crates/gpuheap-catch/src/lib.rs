//! Lets a preloaded library catch a program's calls to CUDA.
//!
//! The loader binds the program's calls to the symbols of the preloaded library. For programs that
//! look functions up at run time, [`export_dlsym!`] exports `dlsym`, and [`Catcher::replace`]
//! changes the results of `cuGetProcAddress`. The library calls the driver's real functions through
//! [`Real`] cells, made by [`real_functions!`].
//!
//! No code of this crate runs when the library is loaded.
#![cfg(all(target_os = "linux", target_env = "gnu"))]

mod catcher;
#[cfg(target_arch = "x86_64")]
mod dlsym;
pub mod loader;
pub mod messages;
mod real;

use std::ffi::c_void;

pub use crate::catcher::Catcher;
use crate::loader::Search;
pub use crate::real::Real;

/// Answer to a search by `dlsym`.
#[derive(Debug)]
#[repr(C)]
pub struct Answer {
    /// This library's function for the symbol; null if it has none.
    ours: *mut c_void,
    /// The loader's own `dlsym`, with which the search goes on if `ours` is null.
    loaders: Option<Search>,
}
