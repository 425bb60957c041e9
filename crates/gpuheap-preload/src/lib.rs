//! The recorder: a library that `gpuheap run` preloads into a CUDA program.
//!
//! The program's calls of the functions in `table.rs` reach this library (crate gpuheap-catch).
//! Each function of this library calls the driver's real function, and records the call in a mapped
//! file. If the process is killed, the file has all records before the last call.
//!
//! No code runs when the library is loaded, and nothing is opened before the first allocation. No
//! lock is held during a call of the driver. No panic reaches the program.
#![cfg(all(target_os = "linux", target_env = "gnu"))]

#[macro_use]
mod table;

mod allocate;
mod arrays;
mod children;
mod closes;
mod contexts;
mod copies;
mod copy_sums;
mod exports;
mod forks;
mod known_stacks;
mod layouts;
mod ledger;
mod limit;
mod mappings;
mod memory_info;
mod open_ranges;
mod pools;
mod publication;
mod python;
mod ranges;
mod real;
mod recorder;
mod settings;
mod stacks;
mod threads;
mod virtual_memory;
