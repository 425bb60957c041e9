//! Plans launches, runs their Rust code on host memory, and compares the results with naive loops.
//! On a GPU, the conformance suite of `gpuheap-emu` checks that the PTX gives equal results.
#![allow(clippy::unwrap_used)]

mod groups;
mod names;
mod ranges;
mod reductions;
mod shapes;
mod support;
mod values;
