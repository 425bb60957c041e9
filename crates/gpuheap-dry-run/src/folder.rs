//! The temporary folder of a run: it contains the libraries under the names that programs load, the
//! Python hook, and the reports.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::Error;
use crate::error::no_folder;
use crate::shell;
use crate::stand_ins::StandIns;

/// Package of the Python hook.
const HOOK: &str = "gpuheap_dry_run_hook";

/// Lists files of the Python hook, with their texts.
macro_rules! hook_files {
    ($($name:literal),* $(,)?) => { [$(($name, include_str!(concat!("hook/", $name)))),*] };
}

/// Names and texts of the Python modules that the program's interpreter loads when it starts.
const HOOK_FILES: [(&str, &str); 25] = hook_files![
    "sitecustomize.py",
    "gpuheap_frameworks_hook.py",
    "gpuheap_import_waiter.py",
    "gpuheap_stand_ins.py",
    "gpuheap_dry_run_hook/__init__.py",
    "gpuheap_dry_run_hook/branches.py",
    "gpuheap_dry_run_hook/callbacks.py",
    "gpuheap_dry_run_hook/detectors.py",
    "gpuheap_dry_run_hook/generation.py",
    "gpuheap_dry_run_hook/hang.py",
    "gpuheap_dry_run_hook/jax_pool.py",
    "gpuheap_dry_run_hook/lines.py",
    "gpuheap_dry_run_hook/native_stack.py",
    "gpuheap_dry_run_hook/owners.py",
    "gpuheap_dry_run_hook/peaks.py",
    "gpuheap_dry_run_hook/process.py",
    "gpuheap_dry_run_hook/reads.py",
    "gpuheap_dry_run_hook/remedies.py",
    "gpuheap_dry_run_hook/report.py",
    "gpuheap_dry_run_hook/results.py",
    "gpuheap_dry_run_hook/rules.py",
    "gpuheap_dry_run_hook/sequences.py",
    "gpuheap_dry_run_hook/sharding.py",
    "gpuheap_dry_run_hook/sizes.py",
    "gpuheap_dry_run_hook/tuning.py",
];

/// Folder of one run. Dropping this value removes the folder.
pub(crate) struct Folder {
    folder: TempDir,
    /// Libraries to preload, in order.
    preloaded: Vec<PathBuf>,
}

impl Folder {
    /// Creates and fills the folder.
    pub(crate) fn new(stand_ins: &StandIns) -> Result<Folder, Error> {
        let folder = new_folder("gpuheap-dry-run-")?;
        let text = folder.path().to_string_lossy();
        // The loader splits `LD_PRELOAD` and `LD_LIBRARY_PATH` at these characters, so no path in
        // these lists may contain them.
        if text.contains([':', ' ', ';']) {
            return Err(Error::Environment(format!(
                "{text}: the loader cannot take a path with a blank, a colon or a semicolon; set \
                 TMPDIR to another folder"
            )));
        }
        let preloaded = fill(folder.path(), stand_ins);
        let preloaded = preloaded.map_err(|error| no_folder(&error))?;
        Ok(Folder { folder, preloaded })
    }

    /// Creates a folder that contains only reports. `files` has the name and content of each.
    #[cfg(fuzzing)]
    pub(crate) fn with_reports(files: &[(&str, &[u8])]) -> io::Result<Folder> {
        let folder = Folder { folder: TempDir::new()?, preloaded: Vec::new() };
        fs::create_dir(folder.reports())?;
        for (name, content) in files {
            fs::write(folder.reports().join(name), content)?;
        }
        Ok(folder)
    }

    /// Returns the folder of the libraries.
    pub(crate) fn libraries(&self) -> PathBuf {
        self.folder.path().join("lib")
    }

    /// Returns the libraries to preload, in order.
    pub(crate) fn preloaded(&self) -> &[PathBuf] {
        &self.preloaded
    }

    /// Returns the folder of the Python modules.
    pub(crate) fn python(&self) -> PathBuf {
        self.folder.path().join("python")
    }

    /// Returns the folder that reports are written to.
    pub(crate) fn reports(&self) -> PathBuf {
        self.folder.path().join("reports")
    }

    /// Returns the path of the file in which the run's processes account for the devices' memory.
    pub(crate) fn account(&self) -> PathBuf {
        self.folder.path().join("account")
    }
}

/// Makes a temporary folder whose name begins with `prefix`.
pub(crate) fn new_folder(prefix: &str) -> Result<TempDir, Error> {
    tempfile::Builder::new().prefix(prefix).tempdir().map_err(|error| no_folder(&error))
}

/// Links the emulated driver and NVML into a folder, under the names that programs load.
pub(crate) fn link_driver(folder: &Path, stand_ins: &StandIns) -> io::Result<()> {
    symlink(&stand_ins.driver, folder.join("libcuda.so.1"))?;
    // Some programs load the driver by the name that linkers use.
    symlink("libcuda.so.1", folder.join("libcuda.so"))?;
    match &stand_ins.nvml {
        Some(nvml) => symlink(nvml, folder.join("libnvidia-ml.so.1")),
        None => Ok(()),
    }
}

/// Writes the Python modules of the hooks into `folder`.
pub(crate) fn write_hooks(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder.join(HOOK))?;
    HOOK_FILES.iter().try_for_each(|(name, text)| fs::write(folder.join(name), text))
}

/// Fills the folder with libraries and Python modules, and returns the libraries to preload.
fn fill(folder: &Path, stand_ins: &StandIns) -> io::Result<Vec<PathBuf>> {
    let libraries = folder.join("lib");
    let python = folder.join("python");
    for made in [&libraries, &folder.join("reports")] {
        fs::create_dir(made)?;
    }
    write_hooks(&python)?;
    link_driver(&libraries, stand_ins)?;
    let mut preloaded = Vec::new();
    let mut shells = Vec::new();
    for (stand_in, name, of) in [
        (&stand_ins.cudart, "libgpuheap_emu_cudart.so", &shell::CUDART[..]),
        (&stand_ins.libraries, "libgpuheap_emu_libraries.so", &shell::LIBRARIES[..]),
    ] {
        let Some(stand_in) = stand_in else { continue };
        let path = libraries.join(name);
        symlink(stand_in, &path)?;
        for soname in of {
            let shell = libraries.join(soname);
            fs::write(&shell, shell::build(soname, &path))?;
            shells.push(shell);
        }
        preloaded.push(path);
    }
    preloaded.extend(shells);
    Ok(preloaded)
}
