//! Commands that examine a machine: whole commands, on recorded machines.

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
#[path = "../schema/mod.rs"]
mod schema;
mod status;

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::command::{Ran, ran};

/// Runs the command without a visible GPU.
fn gpuheap(arguments: &[&str]) -> Ran {
    ran(Command::new(env!("CARGO_BIN_EXE_gpuheap")).args(arguments))
}

/// Writes the file of a recorded machine. Adds the sections of the machine on which it is based.
fn machine(folder: &Path, name: &str) -> PathBuf {
    let machines = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gpuheap-doctor/tests/machines");
    let read =
        |name: &str| std::fs::read_to_string(machines.join(format!("{name}.machine"))).unwrap();
    let own = read(name);
    let base = own.lines().find_map(|line| line.strip_prefix("# base: ")).map(read);
    let text = base.unwrap_or_default() + &own[own.find("== ").unwrap()..];
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

/// Returns the schema `docs/NAME.schema.json`.
fn schema_of(name: &str) -> Value {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let text = std::fs::read_to_string(docs.join(format!("{name}.schema.json"))).unwrap();
    serde_json::from_str(&text).unwrap()
}
