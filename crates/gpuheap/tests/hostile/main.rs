//! Clients without `unsafe` that lie, panic and keep values that they should not, on the emulator
//! with its checks on. None of them may corrupt memory, their own or a neighbour's.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

mod emulator;
mod ends;
mod held;
mod lies;
mod panics;
mod program;
#[path = "../heap/random.rs"]
mod random;
mod reclaimers;
mod registered;
mod staged;
mod stash;
mod streams;
mod support;
