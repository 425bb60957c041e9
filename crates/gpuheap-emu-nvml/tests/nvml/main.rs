//! Tests of the library from outside: its symbols, its settings, and clients written for the real
//! NVML.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]
#![cfg(target_os = "linux")]

mod account;
mod description;
mod driver;
mod exports;
#[path = "../../../gpuheap-emu/tests/libraries/mod.rs"]
mod library;
mod protocol;
