//! The emulated libraries that replace the vendor's libraries, and where their files are.

use std::env;
use std::path::{Path, PathBuf};

use crate::Error;

/// Environment variable that names the folder of the emulated libraries.
pub const FOLDER: &str = "GPUHEAP_STAND_INS";

/// File names of the emulated driver. Cargo builds the first; the Python package has the second.
const DRIVER: [&str; 2] = ["libcuda_emulated.so", "libcuda.so.1"];
const NVML: [&str; 2] = ["libnvml_emulated.so", "libnvidia-ml.so.1"];
const CUDART: [&str; 1] = ["libgpuheap_emu_cudart.so"];
const LIBRARIES: [&str; 1] = ["libgpuheap_emu_libraries.so"];

/// Files of the emulated libraries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StandIns {
    /// The driver, `libcuda.so.1`.
    pub driver: PathBuf,
    /// The monitoring library, `libnvidia-ml.so.1`; `None` if this build lacks it.
    pub nvml: Option<PathBuf>,
    /// The CUDA runtime; `None` if this build lacks it.
    pub cudart: Option<PathBuf>,
    /// One emulated library for cuBLAS, cuDNN, NCCL and others; `None` if this build lacks it.
    pub libraries: Option<PathBuf>,
}

impl StandIns {
    /// Finds the libraries in `folder`. If `folder` is `None`, uses the first of the [`folders`]
    /// that has the driver.
    ///
    /// # Errors
    ///
    /// Returns an error if none of these folders has the driver.
    pub fn find(folder: Option<&Path>) -> Result<StandIns, Error> {
        if let Some(folder) = folder.map(Path::to_owned).or_else(named) {
            return StandIns::within(&folder).ok_or_else(|| {
                Error::Environment(format!(
                    "{} has no emulated driver ({}); {FOLDER} and --stand-ins name the folder of \
                     gpuheap's emulated libraries",
                    folder.display(),
                    DRIVER.join(" or ")
                ))
            });
        }
        folders().iter().find_map(|folder| StandIns::within(folder)).ok_or_else(|| {
            Error::Environment(format!(
                "the emulated driver is missing; in a clone of gpuheap, install the Python \
                 package, which has it (pip install ./crates/gpuheap-python), or build it (cargo \
                 build --release -p gpuheap-emu-libcuda -p gpuheap-emu-cudart -p \
                 gpuheap-emu-libraries -p gpuheap-emu-nvml) and name its folder: export \
                 {FOLDER}=$PWD/target/release"
            ))
        })
    }

    /// Returns the libraries in a folder; `None` if the folder contains no driver.
    fn within(folder: &Path) -> Option<StandIns> {
        // Makes the path absolute, because the program may change its working directory.
        let folder = folder.canonicalize().ok()?;
        let one_of =
            |names: &[&str]| names.iter().map(|name| folder.join(name)).find(|path| path.is_file());
        Some(StandIns {
            driver: one_of(&DRIVER)?,
            nvml: one_of(&NVML),
            cudart: one_of(&CUDART),
            libraries: one_of(&LIBRARIES),
        })
    }
}

/// Returns the folder that `GPUHEAP_STAND_INS` names.
fn named() -> Option<PathBuf> {
    env::var_os(FOLDER).filter(|text| !text.is_empty()).map(PathBuf::from)
}

/// Returns the folders that may contain gpuheap's libraries, the preferred folder first. These are
/// the folder that `GPUHEAP_STAND_INS` names, the executable's folder (Cargo builds there), its
/// parent, and `lib/gpuheap` in the parent (packages install there).
#[must_use]
pub fn folders() -> Vec<PathBuf> {
    let executable = env::current_exe().and_then(|path| path.canonicalize()).ok();
    let own = executable.as_deref().and_then(Path::parent);
    // Cargo puts libraries in one folder, and test executables in a subfolder.
    let above = own.and_then(Path::parent);
    let installed = above.map(|above| above.join("lib/gpuheap"));
    let found = [own, above, installed.as_deref()].into_iter().flatten();
    named().into_iter().chain(found.map(Path::to_owned)).collect()
}
