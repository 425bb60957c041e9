//! Stand-ins for the CUDA libraries that PyTorch loads, as one shared library.
//!
//! Functions that take part in a program's memory have a meaning; the others succeed without an
//! effect, or refuse by the library's own code. Nothing runs when the library is loaded, and no
//! panic leaves it.
#![cfg(unix)]
#![allow(non_snake_case)]

#[macro_use]
mod names;

mod cublas;
mod cublaslt;
mod cudnn;
mod device;
mod nccl;
mod not_modelled;
mod report;
