//! Tests of the library from a program's view: its symbols, its settings, and clients that are
//! written for the real driver.
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

use std::path::Path;

use gpuheap_driver::{LibCuda, OpenError};

/// Opens the library at a path, or by a name that the loader resolves.
fn open_driver(path: &Path) -> Result<LibCuda, OpenError> {
    // SAFETY: the library is a driver: the emulated one that is tested.
    unsafe { LibCuda::open_at(path) }
}
