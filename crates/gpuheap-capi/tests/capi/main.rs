//! The C functions as C calls them, on the emulator with its checks on. With
//! `GPUHEAP_TEST_DEVICE=cuda:0`, the tests that do not need the emulator run on a real GPU.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

mod account;
mod blocks;
mod calls;
mod client;
mod closing;
mod every;
#[path = "../../../gpuheap/tests/heap/failing.rs"]
mod failing;
mod faults;
mod fork;
mod kinds;
mod refusals;
mod scopes;
mod streams;
#[path = "../../../gpuheap/tests/heap/support.rs"]
#[expect(dead_code, reason = "shared with the tests of the heap, which use the rest")]
mod support;
mod sweep;
mod threads;
mod uses;
