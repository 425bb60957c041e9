//! Runs the `gpuheap` commands that examine a machine. Most of them read a recorded machine.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

#[path = "../command/mod.rs"]
mod command;
mod doctor;
#[cfg(target_os = "linux")]
mod emulate;
#[cfg(target_os = "linux")]
mod emulated_nvml;
mod explain;
#[cfg(target_os = "linux")]
mod export;
#[cfg(target_os = "linux")]
#[path = "../../../gpuheap-emu/tests/libraries/mod.rs"]
mod library;
#[cfg(target_os = "linux")]
mod publish;
#[cfg(target_os = "linux")]
#[path = "../publisher/mod.rs"]
mod publisher;
#[path = "../../../gpuheap-doctor/tests/recorded/mod.rs"]
mod recorded;
#[path = "../schema/mod.rs"]
mod schema;
mod status;

use std::process::Command;

use crate::command::{Ran, ran};

/// Runs the command without a visible GPU.
fn gpuheap(arguments: &[&str]) -> Ran {
    ran(Command::new(env!("CARGO_BIN_EXE_gpuheap")).args(arguments))
}
