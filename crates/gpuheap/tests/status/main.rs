//! Tests of a heap's status, and of how a heap gives memory back, on the emulator with its checks
//! on. With `GPUHEAP_TEST_DEVICE=cuda:0`, the tests that do not need the emulator run on a real
//! GPU.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

#[cfg(feature = "arrays")]
mod flush;
#[cfg(feature = "arrays")]
mod idle;
#[cfg(feature = "arrays")]
mod log;
#[cfg(feature = "arrays")]
mod meter;
#[cfg(feature = "arrays")]
mod peak;
#[cfg(feature = "arrays")]
mod reset;
mod retry;
mod shared_device;
mod short_by;
#[cfg(feature = "arrays")]
mod status;
#[path = "../heap/support.rs"]
#[expect(dead_code, reason = "shared with the tests of the heap, which use the rest")]
mod support;
mod unpromised_memory;
mod would_fit;
