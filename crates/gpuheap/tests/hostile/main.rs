//! Clients with no `unsafe` that lie, panic and hold on to what they should not, on the emulator with
//! its checks on: none of them may break memory, of their own or of a neighbour.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

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
