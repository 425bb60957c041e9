//! Runs `gpuheap dry-run` as a user does. Programs use the emulated driver, or are scripts that
//! write reports in place of the libraries.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

mod bad_input;
#[path = "../command/mod.rs"]
mod command;
mod hook;
#[path = "../../../gpuheap-emu/tests/libraries/mod.rs"]
mod library;
mod memory;
mod programs;
#[path = "../schema/mod.rs"]
mod schema;
mod verdicts;

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::command::{Ran, ran};

/// Line of a shell script. It writes the report of a program that used GPU memory.
const USES_A_GPU: &str = "echo '{\"devices\": [{\"total\": 9, \"peak_in_use\": 5}]}' \
                          >$GPUHEAP_EMULATED_REPORT/driver.$$.json\n";

/// A folder with the emulated libraries, and a folder for the files of a test.
struct Bench {
    libraries: TempDir,
    files: TempDir,
}

impl Bench {
    fn new() -> Bench {
        let libraries = library::folder(&[&library::LIBCUDA, &library::NVML]);
        Bench { libraries, files: tempfile::tempdir().unwrap() }
    }

    /// Makes a folder that also contains the CUDA runtime and the C interface.
    fn with_runtime() -> Bench {
        let all = [&library::LIBCUDA, &library::NVML, &library::CUDART, &library::CAPI];
        Bench { libraries: library::folder(&all), files: tempfile::tempdir().unwrap() }
    }

    /// Returns a `gpuheap dry-run` command that runs in the test's folder `files`, without
    /// variables of gpuheap, Python and the dynamic loader.
    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpuheap"));
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            if name.starts_with("GPUHEAP_") || name.starts_with("LD_") || name.starts_with("PYTHON")
            {
                command.env_remove(name);
            }
        }
        command.current_dir(self.files.path()).arg("dry-run");
        command.env("GPUHEAP_STAND_INS", self.libraries.path());
        command
    }

    fn dry_run(&self, arguments: &[&str]) -> Ran {
        ran(self.command().args(arguments))
    }

    /// Runs `gpuheap dry-run` with these arguments, and returns its JSON too.
    fn json(&self, arguments: &[&str]) -> (Ran, serde_json::Value) {
        let path = self.files.path().join("verdict.json");
        let done = ran(self.command().arg("--json").arg(&path).args(arguments));
        let json = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        assert_eq!(schema::differences(&schema::schema_of("dry-run"), &json, "$"), [""; 0]);
        (done, json)
    }

    /// Writes a file, and returns its path.
    fn file(&self, name: &str, text: &str) -> String {
        let path = self.files.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// Compiles a C program, and returns its path.
    fn compiled(&self, source: &str) -> String {
        self.compiled_with(source, &[])
    }

    /// Compiles a C program with further options, and returns its path.
    fn compiled_with(&self, source: &str, options: &[&str]) -> String {
        let path = self.files.path().join(Path::new(source).with_extension(""));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/dry_run").join(source);
        let made =
            Command::new("cc").arg("-o").arg(&path).arg(source).args(options).arg("-ldl").status();
        assert!(made.unwrap().success());
        path.to_str().unwrap().to_owned()
    }

    /// Compiles a C++ program of the repository, and returns its path. The program is linked with
    /// the CUDA runtime and the C interface, and has debug information.
    fn compiled_with_runtime(&self, source: &str) -> String {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let name = Path::new(source).file_stem().unwrap();
        let path = self.files.path().join(name);
        let libraries = self.libraries.path();
        let made = Command::new("c++")
            .args(["-std=c++17", "-g", "-o"])
            .arg(&path)
            .arg(root.join(source))
            .arg("-I")
            .arg(root.join("crates/gpuheap-capi/include"))
            .arg("-L")
            .arg(libraries)
            .args(["-l:libgpuheap_emu_cudart.so", "-l:libgpuheap_capi.so"])
            .arg(format!("-Wl,--as-needed,-rpath,{}", libraries.display()))
            .status();
        assert!(made.unwrap().success());
        path.to_str().unwrap().to_owned()
    }
}
