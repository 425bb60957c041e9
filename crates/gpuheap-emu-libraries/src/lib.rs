//! Stand-ins for the CUDA libraries that PyTorch loads, as one shared library.
//!
//! Functions that affect a program's memory are modelled. The other functions succeed without an
//! effect, or return an error code of their library. This library runs no code when it is loaded,
//! and no panic reaches the program.
#![cfg(unix)]
#![allow(non_snake_case)]

#[macro_use]
mod names;

mod cublas;
mod cublaslt;
mod cudnn;
mod cufft;
mod cusolver;
mod cusparse;
mod device;
mod nccl;
mod not_modelled;
mod report;
mod workspaces;
