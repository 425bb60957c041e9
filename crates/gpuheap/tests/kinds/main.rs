//! Tests of the public interface of the kinds of memory, on the emulator with its checks on. With
//! `GPUHEAP_TEST_DEVICE=cuda:0`, the tests that do not need the emulator run on a real GPU.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

mod errors;
mod pinned;
mod registered;
mod release;
#[path = "../heap/support.rs"]
#[expect(dead_code, reason = "shared with the tests of the heap, which use the rest")]
mod support;
mod unified;
mod wsl2;
mod zero;
