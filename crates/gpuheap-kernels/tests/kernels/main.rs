//! The kernels' plans and their Rust, against naive Rust on plain memory. That the PTX does the same
//! is shown on a GPU, by the conformance suite of `gpuheap-emu`.
#![allow(clippy::unwrap_used)]

mod groups;
mod names;
mod ranges;
mod reductions;
mod shapes;
mod support;
mod values;
