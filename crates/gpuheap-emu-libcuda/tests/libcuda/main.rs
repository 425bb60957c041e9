//! Tests of the library from outside: its symbols, its settings, and clients written for the real
//! driver.
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
    // SAFETY: all callers pass the emulated driver under test.
    unsafe { LibCuda::open_at(path) }
}
