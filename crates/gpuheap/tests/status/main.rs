//! What a heap says of itself and how it gives memory back, on the emulator with its checks on or on
//! a real GPU: set `GPUHEAP_TEST_DEVICE=cuda:0` to run on the latter what does not need the former.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

mod enough;
mod fit;
mod flush;
mod idle;
mod log;
mod measure;
mod peak;
mod promise;
mod reset;
mod retry;
mod status;
#[path = "../heap/support.rs"]
#[expect(dead_code, reason = "shared with the tests of the heap, which use the rest")]
mod support;
