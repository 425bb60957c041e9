//! Plans and Rust of the kernels, against naive Rust on plain memory. The conformance suite of
//! `gpuheap-emu` shows on a GPU that the PTX gives equal results.
#![allow(clippy::unwrap_used)]

mod groups;
mod names;
mod ranges;
mod reductions;
mod shapes;
mod support;
mod values;
