//! The drop-in: a library that is preloaded into a CUDA program and serves its allocations from a
//! heap of gpuheap.
//!
//! The loader binds the program's calls of the functions in `table.rs` to this library. A program
//! that looks up these functions gets this library's too, because it replaces `dlsym` and
//! `cuGetProcAddress`. The library itself calls the driver's real functions (`real.rs`). All calls
//! that the heap does not serve are passed on to the real functions.
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
