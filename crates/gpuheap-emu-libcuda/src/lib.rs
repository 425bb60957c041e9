//! The emulated CUDA device as a `libcuda.so.1` for unmodified driver-API programs.
//!
//! Every function of [`gpuheap_driver::cuda_functions!`] and every per-thread twin is exported
//! under its C name, and `cuGetProcAddress` finds it. All of these functions call the process's one
//! [`gpuheap_emu::Emulator`]. The first call creates the emulator with settings from environment
//! variables; the README lists these.
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
