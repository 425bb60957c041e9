//! What a heap says of itself and how it gives memory back, on the emulator with its checks on or on
//! a real GPU: set `GPUHEAP_TEST_DEVICE=cuda:0` to run on the latter what does not need the former.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

mod beside;
mod enough;
mod fit;
#[cfg(feature = "arrays")]
mod flush;
#[cfg(feature = "arrays")]
mod idle;
#[cfg(feature = "arrays")]
mod log;
#[cfg(feature = "arrays")]
mod measure;
#[cfg(feature = "arrays")]
mod peak;
mod promise;
#[cfg(feature = "arrays")]
mod reset;
mod retry;
#[cfg(feature = "arrays")]
mod status;
#[path = "../heap/support.rs"]
#[expect(dead_code, reason = "shared with the tests of the heap, which use the rest")]
mod support;
