//! Compares arithmetic on arrays with the host's results, on the emulator with its checks on. With
//! `GPUHEAP_TEST_DEVICE=cuda:0`, the tests that do not need the emulator run on a real GPU.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

mod broadcast;
mod cast;
mod errors;
#[path = "../heap/failing.rs"]
mod failing;
mod failing_calls;
mod groups;
mod memory;
mod operators;
mod order;
mod reduce;
mod reference;
mod slices;
#[path = "../heap/support.rs"]
#[expect(dead_code, reason = "shared with the tests of the heap, which use the rest")]
mod support;
