//! The emulated libraries, built and put where a loader finds them.
//!
//! Cargo builds a cdylib for no test of another package, and these libraries must never be linked
//! into a Rust program. So the tests build them with the cargo that runs them.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// An emulated library: its package, its file, and the name that loaders look for.
pub(crate) type Emulated = [&'static str; 3];

pub(crate) const NVML: Emulated = ["gpuheap-emu-nvml", "libnvml_emulated.so", "libnvidia-ml.so.1"];

/// Returns a folder that holds these libraries and nothing else.
pub(crate) fn folder(libraries: &[Emulated]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for [package, file, name] in libraries {
        std::fs::copy(built(package, file), folder.path().join(name)).unwrap();
    }
    folder
}

/// Returns a command for `program` whose loader finds the libraries in `folder` first. None of the
/// emulator's variables are set but `variables`.
pub(crate) fn command(program: &Path, folder: &TempDir, variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("GPUHEAP_EMULATED_") {
            command.env_remove(name);
        }
    }
    command.env("LD_LIBRARY_PATH", folder.path()).envs(variables.iter().copied());
    command
}

fn built(package: &str, file: &str) -> PathBuf {
    // Cargo gives integration tests the folder TARGET/tmp; a test binary lies in
    // TARGET/PROFILE/deps, where the profile "dev" is called "debug".
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let this = std::env::current_exe().unwrap();
    let profile = this.ancestors().nth(2).unwrap().file_name().unwrap().to_str().unwrap();
    let status = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--quiet", "--lib", "--package", package])
        .args(["--profile", if profile == "debug" { "dev" } else { profile }])
        .arg("--target-dir")
        .arg(target)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status()
        .unwrap();
    assert!(status.success(), "{package} does not build");
    target.join(profile).join(file)
}
