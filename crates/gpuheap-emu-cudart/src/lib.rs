//! The CUDA runtime as a library for unmodified programs, over whichever driver `libcuda.so.1` is.
//!
//! It is made for the emulated driver, and for programs that load the runtime as a shared library.
//! Every function of the table is exported under its C name, its per-thread twin included. A
//! function that is not modelled is exported too: it names itself and refuses the call.
//!
//! Nothing runs when the library is loaded or unloaded, and no panic leaves it.
#![cfg(unix)]

#[macro_use]
mod table;
#[macro_use]
mod not_modelled_names;

mod call;
mod context;
mod error;
mod exports;
mod functions;
mod kernels;
mod not_modelled;
mod registration;
mod torch;
mod types;
mod version;
