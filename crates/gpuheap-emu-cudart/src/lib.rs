//! CUDA runtime as a library for unmodified programs. It calls the driver that the loader finds as
//! `libcuda.so.1`.
//!
//! The library is made for the emulated driver, and for programs that load the runtime as a shared
//! library. It exports every function of the table, and every per-thread twin, under its C name.
//! Functions that are not modelled are exported too. They write their name to stderr once, and
//! return an error.
//!
//! The library runs no code when it is loaded or unloaded. No panic reaches the program.
#![cfg(unix)]

#[macro_use]
mod table;
#[macro_use]
mod not_modelled_names;

mod call;
mod contents;
mod context;
mod error;
mod exports;
mod functions;
mod kernels;
mod not_modelled;
mod operators;
mod registration;
mod torch;
mod types;
mod version;
