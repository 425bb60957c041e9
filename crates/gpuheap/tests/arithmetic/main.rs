//! Arithmetic on arrays, beside the same on the host; on the emulator with its checks on or on a real
//! GPU: set `GPUHEAP_TEST_DEVICE=cuda:0` to run on the latter what does not need the former.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

mod broadcast;
mod cast;
#[path = "../heap/failing.rs"]
mod failing;
mod groups;
mod memory;
mod operators;
mod order;
mod programs;
mod reduce;
mod reference;
mod slices;
#[path = "../heap/support.rs"]
#[expect(dead_code, reason = "shared with the tests of the heap, which use the rest")]
mod support;
mod sweep;
mod texts;
