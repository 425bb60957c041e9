//! A program on the emulated device, without a verdict: `gpuheap emulate`.

use std::env;
use std::ffi::OsString;
use std::io;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};

use tempfile::TempDir;

use crate::signals::Signals;
use crate::stand_ins::StandIns;
use crate::{Error, environment};

/// A program to run on the emulated device.
#[derive(Debug, Clone)]
pub struct Emulation {
    /// The program: a path, or a name that `PATH` has.
    pub program: OsString,
    /// Arguments of the program.
    pub arguments: Vec<OsString>,
    /// Variables of the emulated libraries to set, as docs/emulator.md lists them.
    pub variables: Vec<(&'static str, String)>,
    /// Folder of the emulated libraries; `None` to look for them.
    pub stand_ins: Option<PathBuf>,
}

/// Runs the program, which finds the emulated driver and NVML in the places of NVIDIA's, and waits
/// for its end. Signals to this process are passed on.
///
/// # Errors
///
/// The emulated driver is missing, no temporary folder can be made, or the program cannot be
/// started.
pub fn emulate(emulation: &Emulation) -> Result<ExitStatus, Error> {
    let stand_ins = StandIns::find(emulation.stand_ins.as_deref())?;
    let folder = libraries(&stand_ins).map_err(|error| {
        Error::Environment(format!(
            "{}: a folder for the run cannot be written: {error}; set TMPDIR to a folder with room",
            env::temp_dir().display()
        ))
    })?;
    let mut command = Command::new(&emulation.program);
    command.args(&emulation.arguments);
    let first = [folder.path().as_os_str()];
    command.env("LD_LIBRARY_PATH", environment::before("LD_LIBRARY_PATH", first));
    command.envs(emulation.variables.iter().map(|(name, value)| (name, value)));
    let signals = Signals::new();
    let (mut child, _running) = signals.start(&mut command).map_err(|error| {
        let program = emulation.program.to_string_lossy();
        Error::Environment(format!(
            "{program} cannot be run: {error}; give its path, or a name that PATH has"
        ))
    })?;
    child
        .wait()
        .map_err(|error| Error::Environment(format!("the program cannot be waited for: {error}")))
}

/// Makes a folder with the libraries under the names that programs load.
fn libraries(stand_ins: &StandIns) -> io::Result<TempDir> {
    let folder = tempfile::Builder::new().prefix("gpuheap-emulate-").tempdir()?;
    symlink(&stand_ins.driver, folder.path().join("libcuda.so.1"))?;
    symlink("libcuda.so.1", folder.path().join("libcuda.so"))?;
    if let Some(nvml) = &stand_ins.nvml {
        symlink(nvml, folder.path().join("libnvidia-ml.so.1"))?;
    }
    Ok(folder)
}
