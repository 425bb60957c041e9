//! The emulated CUDA device as a `libcuda.so.1` for unmodified driver-API programs.
//!
//! Every function of [`gpuheap_driver::cuda_functions!`] is exported under its C name, its
//! per-thread twins included, and `cuGetProcAddress` finds it. All of them call one
//! [`gpuheap_emu::Emulator`] of the process. The environment sets it up at the first call; the
//! README lists the variables.
//!
//! Nothing runs when the library is loaded or unloaded, and no panic leaves it.
#![cfg(unix)]

#[macro_use]
mod refused_names;

mod copies;
mod entry_point;
mod exports;
mod own_exports;
mod process;
mod report;
mod requests;
mod settings;
