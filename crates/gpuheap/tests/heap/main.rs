//! Tests of the public interface of the heap, on the emulator with its checks on. With
//! `GPUHEAP_TEST_DEVICE=cuda:0`, the tests that do not need the emulator run on a real GPU.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

mod blocks;
#[cfg(feature = "arithmetic")]
mod capture;
mod failing;
mod failing_calls;
#[cfg(feature = "arithmetic")]
mod findings;
#[cfg(feature = "arrays")]
mod foreign;
#[cfg(feature = "arrays")]
mod free_on;
mod growth;
#[cfg(feature = "arithmetic")]
mod late_capture;
mod limits;
mod other_heaps;
#[cfg(feature = "arithmetic")]
mod overwrite;
#[cfg(feature = "arithmetic")]
mod planted;
mod programs;
mod reclaim_steps;
mod support;
mod thread_cache;
#[cfg(feature = "arrays")]
mod thread_streams;
mod threads;
mod total_limit;
#[cfg(feature = "arrays")]
mod waits;
