//! Emulated libraries: builds them and puts them where a loader finds them.
//!
//! Cargo builds no cdylib for the tests of a package, because a dependency of a test must be a
//! library that Rust code can link. These libraries must never be linked into a Rust program: they
//! would replace the real libraries for all code of the program. So the tests build them with the
//! cargo that runs the tests.
#![allow(dead_code, reason = "each suite uses its own part")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use tempfile::TempDir;

/// The emulated driver.
pub(crate) static LIBCUDA: Emulated =
    Emulated::new("gpuheap-emu-libcuda", "libcuda_emulated.so", "libcuda.so.1");

/// The emulated NVML.
pub(crate) static NVML: Emulated =
    Emulated::new("gpuheap-emu-nvml", "libnvml_emulated.so", "libnvidia-ml.so.1");

/// The stand-ins for cuBLAS and others.
pub(crate) static LIBRARIES: Emulated = Emulated::new(
    "gpuheap-emu-libraries",
    "libgpuheap_emu_libraries.so",
    "libgpuheap_emu_libraries.so",
);

/// The emulated CUDA runtime, gpuheap-emu-cudart.
pub(crate) static CUDART: Emulated =
    Emulated::new("gpuheap-emu-cudart", "libgpuheap_emu_cudart.so", "libgpuheap_emu_cudart.so");

/// The drop-in library, gpuheap-malloc.
pub(crate) static MALLOC: Emulated =
    Emulated::new("gpuheap-malloc", "libgpuheap_malloc.so", "libgpuheap_malloc.so");

/// The recorder.
pub(crate) static PRELOAD: Emulated =
    Emulated::new("gpuheap-preload", "libgpuheap_preload.so", "libgpuheap_preload.so");

/// The library of gpuheap's C interface.
pub(crate) static CAPI: Emulated =
    Emulated::new("gpuheap-capi", "libgpuheap_capi.so", "libgpuheap_capi.so");

pub(crate) struct Emulated {
    package: &'static str,
    file: &'static str,
    /// File name that loaders search for.
    name: &'static str,
    built: OnceLock<PathBuf>,
}

/// Returns a folder that contains these libraries and nothing else.
pub(crate) fn folder(libraries: &[&Emulated]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for library in libraries {
        std::fs::copy(library.built(), folder.path().join(library.name)).unwrap();
    }
    folder
}

/// Returns a command that runs `program`. The loader finds the libraries in `folder` first. Unsets
/// the emulator's variables and the driver's choice of devices, except for those in `variables`.
pub(crate) fn command(program: &Path, folder: &TempDir, variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("GPUHEAP_EMULATED_") {
            command.env_remove(name);
        }
    }
    command
        .env_remove("CUDA_VISIBLE_DEVICES")
        .env("LD_LIBRARY_PATH", folder.path())
        .envs(variables.iter().copied());
    command
}

/// Returns a command that runs one ignored test of this test binary in its own process, because a
/// process reads the libraries' environment variables only once.
pub(crate) fn ignored_test(name: &str, folder: &TempDir, variables: &[(&str, &str)]) -> Command {
    let mut command = command(&std::env::current_exe().unwrap(), folder, variables);
    command.args([name, "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
    command
}

/// Runs one [ignored test](ignored_test) as a [`quiet_success`].
pub(crate) fn run_ignored_test(name: &str, folder: &TempDir, variables: &[(&str, &str)]) -> String {
    quiet_success(ignored_test(name, folder, variables).output().unwrap())
}

/// Runs one [ignored test](ignored_test) that must succeed, and returns the text on its stderr.
pub(crate) fn stderr_of(name: &str, folder: &TempDir, variables: &[(&str, &str)]) -> String {
    let output = ignored_test(name, folder, variables).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{variables:?}: {stderr}");
    stderr
}

/// Returns the output of a program. Asserts that the program succeeded and wrote nothing to stderr.
pub(crate) fn quiet_success(output: Output) -> String {
    let stdout = String::from_utf8(output.stdout).unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{}\n{stdout}\n{stderr}", output.status);
    assert_eq!(stderr, "", "\n{stdout}");
    stdout
}

impl Emulated {
    const fn new(package: &'static str, file: &'static str, name: &'static str) -> Self {
        Self { package, file, name, built: OnceLock::new() }
    }

    /// Returns the library's file. Builds the file once in each test binary. With `BUILT=1`, the
    /// file is there already: `.ci/run` builds it together with the tests.
    fn built(&self) -> &Path {
        self.built.get_or_init(|| {
            // Cargo gives integration tests the folder TARGET/tmp. A test binary is in
            // TARGET/PROFILE/deps, where the folder of the profile "dev" is called "debug".
            let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
            let this = std::env::current_exe().unwrap();
            let profile = this.ancestors().nth(2).unwrap().file_name().unwrap().to_str().unwrap();
            if std::env::var_os("BUILT").is_none_or(|built| built != "1") {
                let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
                let status = Command::new(cargo)
                    .args(["build", "--quiet", "--lib", "--package", self.package])
                    .args(["--profile", if profile == "debug" { "dev" } else { profile }])
                    .arg("--target-dir")
                    .arg(target)
                    .current_dir(env!("CARGO_MANIFEST_DIR"))
                    .status()
                    .unwrap();
                assert!(status.success(), "{} does not build", self.package);
            }
            let file = target.join(profile).join(self.file);
            assert!(file.exists(), "{} is not built, although BUILT may say so", file.display());
            file
        })
    }
}
