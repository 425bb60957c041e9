//! The library under test, built and put where a loader finds it.
//!
//! Cargo builds a cdylib for none of its package's tests: a test's dependency must be a library
//! that Rust code can link. This library must never be linked into a Rust program, because it would
//! replace the real driver for that program's other users. So the tests build it with the cargo
//! that runs them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use tempfile::TempDir;

/// Returns a folder that holds the library as `libcuda.so.1` and nothing else.
pub(crate) fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(built(), folder.path().join("libcuda.so.1")).unwrap();
    folder
}

/// Returns a command for `program` whose loader finds the library in `folder` before any other
/// driver. None of the emulator's variables are set, nor the driver's choice of devices.
pub(crate) fn command(program: &Path, folder: &TempDir) -> Command {
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", folder.path()).env_remove("CUDA_VISIBLE_DEVICES");
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("GPUHEAP_EMULATED_") {
            command.env_remove(name);
        }
    }
    command
}

/// Runs one ignored test of this test binary in its own process, with `variables` set.
pub(crate) fn run_ignored_test(name: &str, folder: &TempDir, variables: &[(&str, &str)]) -> Output {
    let this = std::env::current_exe().unwrap();
    command(&this, folder)
        .args([name, "--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .envs(variables.iter().copied())
        .output()
        .unwrap()
}

/// Returns the output of a program, which must succeed and write nothing to stderr.
pub(crate) fn quiet_success(output: Output) -> String {
    let stdout = String::from_utf8(output.stdout).unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{}\n{stdout}\n{stderr}", output.status);
    assert_eq!(stderr, "", "\n{stdout}");
    stdout
}

fn built() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        // Cargo gives integration tests the folder TARGET/tmp; a test binary lies in
        // TARGET/PROFILE/deps, where the profile "dev" is called "debug".
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
        let this = std::env::current_exe().unwrap();
        let profile = this.ancestors().nth(2).unwrap().file_name().unwrap().to_str().unwrap();
        let status = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .args(["build", "--quiet", "--lib", "--package", env!("CARGO_PKG_NAME")])
            .args(["--profile", if profile == "debug" { "dev" } else { profile }])
            .arg("--target-dir")
            .arg(target)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status()
            .unwrap();
        assert!(status.success(), "the library does not build");
        target.join(profile).join("libcuda_emulated.so")
    })
}
