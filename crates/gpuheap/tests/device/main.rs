//! Tests of the public interface of devices, streams and events, on the emulator with its checks
//! on. With `GPUHEAP_TEST_DEVICE=cuda:0`, the tests that do not need the emulator run on a real
//! GPU.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

mod events;
mod open;
mod peers;
#[cfg(feature = "arithmetic")]
mod reset;
mod support;
