//! Clients without `unsafe` that lie, panic and keep values that they should not, on the emulator
//! with its checks on. None of them may corrupt memory, their own or a neighbour's.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

mod destructors;
mod drop_order;
mod emulator;
mod kept_results;
mod panics;
mod random_programs;
mod reclaimers;
mod registered;
mod staged;
mod streams;
mod support;
mod trait_impls;
