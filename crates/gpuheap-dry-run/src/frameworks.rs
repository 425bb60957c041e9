//! Hooks in frameworks for `gpuheap run --frameworks`.

use std::ffi::OsString;

use tempfile::TempDir;

use crate::error::no_folder;
use crate::folder::{new_folder, write_hooks};
use crate::{Error, environment};

/// Folder with Python modules that record the blocks of frameworks' pools. The folder is removed
/// when this value is dropped.
#[derive(Debug)]
pub struct FrameworkHooks(TempDir);

impl FrameworkHooks {
    /// Makes the folder.
    ///
    /// # Errors
    ///
    /// No temporary folder can be made.
    pub fn new() -> Result<FrameworkHooks, Error> {
        let folder = new_folder("gpuheap-run-")?;
        write_hooks(folder.path()).map_err(|error| no_folder(&error))?;
        Ok(FrameworkHooks(folder))
    }

    /// Returns the environment variables that load the hooks. The program's own `sitecustomize`
    /// runs after the hooks.
    pub fn variables(&self) -> [(&'static str, OsString); 2] {
        [
            ("PYTHONPATH", environment::prepend("PYTHONPATH", [self.0.path()])),
            ("GPUHEAP_RUN_FRAMEWORKS", "1".into()),
        ]
    }
}
