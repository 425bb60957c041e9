//! Tests of structures that are moved to the device and back. They run on the emulator with its
//! checks on, or with `GPUHEAP_TEST_DEVICE=cuda:0` on a real GPU.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

mod derive;
mod elements;
#[path = "../heap/failing.rs"]
mod failing;
mod failing_calls;
mod handles;
mod rules;
mod small_arrays;
#[cfg(feature = "sprs")]
mod sparse;
#[path = "../heap/support.rs"]
#[expect(dead_code, reason = "shared with the tests of the heap, which use the rest")]
mod support;
