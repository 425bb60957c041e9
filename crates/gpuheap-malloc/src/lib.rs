//! The drop-in: a library that is preloaded into a CUDA program and serves the program's
//! allocations from heaps of gpuheap.
//!
//! The loader binds the program's calls of the functions in `table.rs` to this library. The library
//! also replaces `dlsym` and `cuGetProcAddress`, so a program that looks up these functions gets
//! the library's versions. Calls that no heap serves are passed on to the real functions
//! (`real.rs`).
//!
//! No code runs when the library is loaded. No panic reaches the program. In a forked child, every
//! call is passed on.
#![cfg(all(target_os = "linux", target_env = "gnu"))]

#[macro_use]
mod table;

mod counts;
mod devices;
#[cfg(target_arch = "x86_64")]
mod dlsym;
mod driver_api;
mod exports;
mod figures;
mod missing_driver;
mod pools;
mod real;
mod report;
mod resets;
mod runtime_api;
#[cfg(target_arch = "x86_64")]
mod search_path;
mod serve;
mod settings;
mod unserved;
