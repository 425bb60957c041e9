//! The drop-in: a library that is preloaded into a CUDA program and serves its allocations from a
//! heap of gpuheap.
//!
//! The loader binds the program's calls of the functions in `table.rs` to this library. Programs
//! that look functions up get them from it too: `dlsym` and `cuGetProcAddress` are in its hands.
//! Its own calls of the driver go to the real functions (`real.rs`), and so do all calls that the
//! heap does not serve.
//!
//! Nothing runs when the library is loaded. No panic leaves it, and in a forked child it passes
//! every call on.
#![cfg(all(target_os = "linux", target_env = "gnu"))]

#[macro_use]
mod table;

mod counts;
mod devices;
mod driver_api;
mod exports;
mod figures;
mod loader;
mod lookup;
mod messages;
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
