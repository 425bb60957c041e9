//! The library as programs see it: its symbols, its settings, and clients that are written for the
//! real driver.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

mod c_client;
mod cudarc_client;
mod exports;
mod heap;
#[path = "../../../gpuheap-emu/tests/libraries/mod.rs"]
mod library;
#[path = "../../../gpuheap/tests/heap/planted.rs"]
mod planted;
mod settings;
