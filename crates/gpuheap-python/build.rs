//! With the feature `wheel`, builds the other parts of a wheel: the C++ functions that PyTorch
//! calls, and the emulated libraries of `gpuheap emulate` and `gpuheap dry-run`.
//!
//! The emulated libraries are separate packages, so a second Cargo builds them. The second Cargo
//! uses another target folder, because this build holds a lock on its own folder. If
//! `WHEEL_EMULATED` names a folder, the libraries in that folder are used instead. The script
//! copies the libraries to `python/gpuheap/emulated/`, where maturin finds them.

use std::env;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=WHEEL_EMULATED");
    if env::var_os("CARGO_FEATURE_WHEEL").is_none() {
        return Ok(());
    }
    #[cfg(feature = "wheel")]
    entry();
    let here = env::var("CARGO_MANIFEST_DIR")?;
    let built = match env::var_os("WHEEL_EMULATED") {
        Some(folder) => PathBuf::from(folder),
        None => emulated(Path::new(&here))?,
    };
    let to = Path::new(&here).join("python/gpuheap/emulated");
    fs::create_dir_all(&to)?;
    for (_, file, name) in EMULATED {
        println!("cargo::rerun-if-changed={}", built.join(file).display());
        fs::copy(built.join(file), to.join(name))?;
    }
    Ok(())
}

/// Packages of the emulated libraries and of the recorder. An entry has the package, the file that
/// Cargo builds, and the file's name in the wheel.
const EMULATED: [(&str, &str, &str); 5] = [
    ("gpuheap-emu-libcuda", "libcuda_emulated.so", "libcuda.so.1"),
    ("gpuheap-emu-nvml", "libnvml_emulated.so", "libnvidia-ml.so.1"),
    ("gpuheap-emu-cudart", "libgpuheap_emu_cudart.so", "libgpuheap_emu_cudart.so"),
    ("gpuheap-preload", "libgpuheap_preload.so", "libgpuheap_preload.so"),
    ("gpuheap-emu-libraries", "libgpuheap_emu_libraries.so", "libgpuheap_emu_libraries.so"),
];

/// Builds the emulated libraries. Returns the folder that contains them.
fn emulated(here: &Path) -> Result<PathBuf, Box<dyn Error>> {
    for of in ["emu", "driver", "kernels"] {
        println!("cargo::rerun-if-changed=../gpuheap-{of}/src");
    }
    let target = Path::new(&env::var("OUT_DIR")?).join("emulator");
    let mut command = Command::new(env::var("CARGO")?);
    command.args(["build", "--release", "--locked"]);
    for (package, ..) in EMULATED {
        println!("cargo::rerun-if-changed=../{package}/src");
        command.args(["--package", package]);
    }
    let built = command
        .arg("--target-dir")
        .arg(&target)
        .current_dir(here)
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env("CARGO_PROFILE_RELEASE_DEBUG", "false")
        .env("CARGO_PROFILE_RELEASE_STRIP", "true")
        .status()?;
    if !built.success() {
        return Err("the emulated libraries were not built: see above".into());
    }
    Ok(target.join("release"))
}

/// Compiles `src/torch_entry.cpp`, the C++ functions that PyTorch calls.
#[cfg(feature = "wheel")]
fn entry() {
    println!("cargo::rerun-if-changed=src/torch_entry.cpp");
    cc::Build::new()
        .cpp(true)
        .std("c++11")
        // Without optimisation, vectors need a symbol of libstdc++ 11. manylinux_2_28 does not have
        // it.
        .opt_level(2)
        .file("src/torch_entry.cpp")
        .flag("-Wall")
        .flag("-Wextra")
        .compile("gpuheap_torch_entry");
}
