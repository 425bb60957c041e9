//! Tests of batches. They run on the emulator with its checks on, or with
//! `GPUHEAP_TEST_DEVICE=cuda:0` on a real GPU.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

mod batch_lifetime;
mod by_memory;
#[path = "../heap/failing.rs"]
mod failing;
mod failing_calls;
mod feeder;
#[path = "../heap/support.rs"]
#[expect(dead_code, reason = "shared with the tests of the heap, which use the rest")]
mod support;
mod upload_ahead;
