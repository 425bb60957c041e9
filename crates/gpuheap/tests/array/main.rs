//! Tests of the public interface of arrays, on the emulator with its checks on. With
//! `GPUHEAP_TEST_DEVICE=cuda:0`, the tests that do not need the emulator run on a real GPU.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

mod create;
mod debug;
mod devices;
mod elements;
#[cfg(feature = "arithmetic")]
mod errors;
#[path = "../heap/failing.rs"]
mod failing;
mod failing_calls;
mod foreign;
mod lifetime;
#[cfg(feature = "arithmetic")]
mod resize;
mod scope;
mod staging;
#[cfg(feature = "arithmetic")]
mod streams;
#[path = "../heap/support.rs"]
#[expect(dead_code, reason = "shared with the tests of the heap, which use the rest")]
mod support;
mod views;
