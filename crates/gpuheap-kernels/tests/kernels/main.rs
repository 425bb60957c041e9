//! Runs the kernels' plans and Rust code on plain memory, and compares the results with naive Rust.
//! On a GPU, the conformance suite of `gpuheap-emu` checks that the PTX gives equal results.
#![allow(clippy::unwrap_used)]

mod groups;
mod names;
mod ranges;
mod reductions;
mod shapes;
mod support;
mod values;
