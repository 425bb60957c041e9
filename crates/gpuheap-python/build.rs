//! Builds what a wheel has beside the extension module, with the feature `wheel`: the C++ entrance
//! for PyTorch and the emulated libcuda.so.1.
//!
//! The emulator is a library of its own, so Cargo builds it here, into a target folder of its own:
//! the one of this build is locked. `WHEEL_LIBCUDA` names one that is built already. maturin then
//! takes it from `python/gpuheap/emulated/`.

use std::env;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=WHEEL_LIBCUDA");
    if env::var_os("CARGO_FEATURE_WHEEL").is_none() {
        return Ok(());
    }
    #[cfg(feature = "wheel")]
    entry();
    let here = env::var("CARGO_MANIFEST_DIR")?;
    let emulator = match env::var_os("WHEEL_LIBCUDA") {
        Some(built) => {
            println!("cargo::rerun-if-changed={}", built.display());
            PathBuf::from(built)
        }
        None => emulator(Path::new(&here))?,
    };
    let to = Path::new(&here).join("python/gpuheap/emulated");
    fs::create_dir_all(&to)?;
    fs::copy(emulator, to.join("libcuda.so.1"))?;
    Ok(())
}

/// Builds the emulator, and returns the path of its library.
fn emulator(here: &Path) -> Result<PathBuf, Box<dyn Error>> {
    for of in ["emu-libcuda", "emu", "driver", "kernels"] {
        println!("cargo::rerun-if-changed=../gpuheap-{of}/src");
    }
    let target = Path::new(&env::var("OUT_DIR")?).join("emulator");
    let built = Command::new(env::var("CARGO")?)
        .args(["build", "--release", "--locked", "--package", "gpuheap-emu-libcuda"])
        .arg("--target-dir")
        .arg(&target)
        .current_dir(here)
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env("CARGO_PROFILE_RELEASE_DEBUG", "false")
        .env("CARGO_PROFILE_RELEASE_STRIP", "true")
        .status()?;
    if !built.success() {
        return Err("the emulated libcuda.so.1 was not built: see above".into());
    }
    Ok(target.join("release/libcuda_emulated.so"))
}

/// Compiles the function that throws for PyTorch.
#[cfg(feature = "wheel")]
fn entry() {
    println!("cargo::rerun-if-changed=src/torch_entry.cpp");
    cc::Build::new()
        .cpp(true)
        .std("c++11")
        .file("src/torch_entry.cpp")
        .flag("-Wall")
        .flag("-Wextra")
        .compile("gpuheap_torch_entry");
}
