//! Behaviour of every driver. One suite tests the emulated driver and the real one.
//!
//! The suite runs on the emulator under every schedule. With `GPUHEAP_TEST_DEVICE=cuda:0`, it runs
//! on that device instead. No test causes an error after which a context is unusable.
#![allow(clippy::unwrap_used)]

mod capture;
mod contexts;
mod copies;
mod entry_points;
mod events;
mod host_pools;
mod kernels;
mod managed;
mod memory;
mod misuse;
mod no_context;
mod peers;
mod per_thread;
mod pinned;
mod pointers;
mod pools;
mod streams;
mod support;
mod vmm;
