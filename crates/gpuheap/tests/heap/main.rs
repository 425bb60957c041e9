//! The heap through its public face, on the emulator with its checks on or on a real GPU: set
//! `GPUHEAP_TEST_DEVICE=cuda:0` to run on the latter what does not need the former.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

mod blocks;
mod capture;
mod failing;
mod foreign;
mod free_on;
mod front;
mod ladder;
mod life;
mod limits;
mod overwrite;
mod planted;
mod programs;
mod siblings;
mod support;
mod sweep;
mod threads;
mod waits;
