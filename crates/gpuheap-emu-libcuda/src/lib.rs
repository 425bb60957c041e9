//! The emulated CUDA device as a `libcuda.so.1` for unmodified driver-API programs.
//!
//! Every function of [`gpuheap_driver::cuda_functions!`] and every per-thread twin is exported
//! under its C name, and `cuGetProcAddress` finds it. All of these functions call one
//! [`gpuheap_emu::Emulator`], created by the first call. Its settings are environment variables;
//! the README lists them.
//!
//! The library runs no code when it is loaded or unloaded. No panic reaches the program.
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
