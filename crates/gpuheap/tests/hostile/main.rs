//! Clients without `unsafe` that implement traits wrongly, panic, and keep values beyond their
//! lifetime. They run on the emulator with its checks on. No client may corrupt memory, neither its
//! own nor other memory.

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
