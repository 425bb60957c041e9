//! Devices, streams and events through their public face, on the emulator with its checks on or on
//! a real GPU: set `GPUHEAP_TEST_DEVICE=cuda:0` to run on the latter what does not need the former.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

mod events;
mod open;
mod peers;
#[cfg(feature = "arithmetic")]
mod reset;
mod support;
