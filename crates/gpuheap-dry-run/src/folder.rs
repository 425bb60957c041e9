//! The temporary folder of a run: the libraries under the names that programs load, the Python
//! hook, and the reports.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::shell;
use crate::stand_ins::StandIns;
use crate::{Error, hook};

/// Folder of one run, removed when it is dropped.
pub(crate) struct Folder {
    folder: TempDir,
    /// Files to preload, in order.
    preloaded: Vec<PathBuf>,
}

impl Folder {
    /// Makes the folder.
    pub(crate) fn new(stand_ins: &StandIns) -> Result<Folder, Error> {
        let failed = |error: io::Error| {
            Error::Environment(format!(
                "{}: a folder for the run cannot be written: {error}; set TMPDIR to a folder with room",
                std::env::temp_dir().display()
            ))
        };
        let folder = tempfile::Builder::new().prefix("gpuheap-dry-run-").tempdir();
        let folder = folder.map_err(failed)?;
        let text = folder.path().to_string_lossy();
        // The loader splits its lists there.
        if text.contains([':', ' ', ';']) {
            return Err(Error::Environment(format!(
                "{text}: the loader cannot take a path with a blank, a colon or a semicolon; set \
                 TMPDIR to another folder"
            )));
        }
        let preloaded = fill(folder.path(), stand_ins).map_err(failed)?;
        Ok(Folder { folder, preloaded })
    }

    /// Returns the folder of the libraries.
    pub(crate) fn libraries(&self) -> PathBuf {
        self.folder.path().join("lib")
    }

    /// Returns the files to preload, in order.
    pub(crate) fn preloaded(&self) -> &[PathBuf] {
        &self.preloaded
    }

    /// Returns the folder that Python is to look for modules in.
    pub(crate) fn python(&self) -> PathBuf {
        self.folder.path().join("python")
    }

    /// Returns the folder that reports are written to.
    pub(crate) fn reports(&self) -> PathBuf {
        self.folder.path().join("reports")
    }

    /// Returns the file in which the run's processes share the devices' memory.
    pub(crate) fn account(&self) -> PathBuf {
        self.folder.path().join("account")
    }
}

/// Fills the folder, and returns the files to preload.
fn fill(folder: &Path, stand_ins: &StandIns) -> io::Result<Vec<PathBuf>> {
    let libraries = folder.join("lib");
    for made in [&libraries, &folder.join("python"), &folder.join("reports")] {
        fs::create_dir(made)?;
    }
    for (name, text) in hook::FILES {
        fs::write(folder.join("python").join(name), text)?;
    }
    symlink(&stand_ins.driver, libraries.join("libcuda.so.1"))?;
    // Some programs load it by the name for linking.
    symlink("libcuda.so.1", libraries.join("libcuda.so"))?;
    if let Some(nvml) = &stand_ins.nvml {
        symlink(nvml, libraries.join("libnvidia-ml.so.1"))?;
    }
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
            fs::write(&shell, shell::file(soname, &path))?;
            shells.push(shell);
        }
        preloaded.push(path);
    }
    preloaded.extend(shells);
    Ok(preloaded)
}
