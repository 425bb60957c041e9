//! Runs a program on the emulated device, for `gpuheap emulate`. This command gives no verdict on
//! the program's memory, unlike `gpuheap dry-run`.

use std::env;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};

use crate::error::no_folder;
use crate::folder::{Folder, link_driver, new_folder};
use crate::signals::Signals;
use crate::stand_ins::StandIns;
use crate::{Error, environment};

/// A program to run on the emulated device.
#[derive(Debug, Clone)]
pub struct Emulation {
    /// Path of the program, or a name to search in `PATH`.
    pub program: OsString,
    /// Arguments of the program.
    pub arguments: Vec<OsString>,
    /// Environment variables to set for the emulated libraries. docs/emulator.md lists such
    /// variables.
    pub variables: Vec<(&'static str, OsString)>,
    /// Folder of the emulated libraries; `None` to search for the folder.
    pub stand_ins: Option<PathBuf>,
}

/// Runs the program with the emulated driver and NVML in place of NVIDIA's, and waits until the
/// program ends. Passes this process's signals on to the program.
///
/// # Errors
///
/// The emulated driver is missing, no temporary folder can be made, or the program cannot be
/// started.
pub fn emulate(emulation: &Emulation) -> Result<ExitStatus, Error> {
    let stand_ins = StandIns::find(emulation.stand_ins.as_deref())?;
    let folder = new_folder("gpuheap-emulate-")?;
    link_driver(folder.path(), &stand_ins).map_err(|error| no_folder(&error))?;
    let mut command = emulation.command();
    command.env("LD_LIBRARY_PATH", environment::prepend("LD_LIBRARY_PATH", [folder.path()]));
    emulation.run(command)
}

impl Emulation {
    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments);
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    fn run(&self, mut command: Command) -> Result<ExitStatus, Error> {
        run_passing_signals(&mut command).map_err(|error| {
            let program = self.program.to_string_lossy();
            Error::Environment(format!(
                "{program} cannot be run: {error}; give its path, or a name that PATH has"
            ))
        })
    }
}

/// Runs the program as [`emulate`] does, and also replaces NVIDIA's CUDA runtime and libraries.
/// PyTorch's kernels do nothing.
///
/// # Errors
///
/// Returns errors as [`emulate`] does.
pub fn emulate_with_runtime(emulation: &Emulation) -> Result<ExitStatus, Error> {
    let stand_ins = StandIns::find(emulation.stand_ins.as_deref())?;
    let folder = Folder::new(&stand_ins)?;
    let mut command = emulation.command();
    let before = |name: &str| {
        let set = emulation.variables.iter().find(|(set, _)| *set == name);
        set.map(|(_, value)| value.clone()).or_else(|| env::var_os(name))
    };
    // The recorder of `gpuheap run` intercepts calls, and passes them on to the emulated libraries.
    // So it comes before these libraries: the loader takes a function from the first library that
    // has it.
    let stand_ins = folder.preloaded().iter().map(|path| path.into());
    let preloaded = before("LD_PRELOAD").into_iter().chain(stand_ins);
    command.env("LD_PRELOAD", environment::join(preloaded));
    let python = [folder.python().into_os_string()].into_iter().chain(before("PYTHONPATH"));
    command.env("PYTHONPATH", environment::join(python));
    command.env("LD_LIBRARY_PATH", environment::prepend("LD_LIBRARY_PATH", [folder.libraries()]));
    command.env(environment::RUNTIME, "1");
    emulation.run(command)
}

/// Runs a command, and waits until it ends. Passes this process's signals on to the command.
///
/// # Errors
///
/// Returns the system's error if the command cannot be started or waited for.
pub fn run_passing_signals(command: &mut Command) -> io::Result<ExitStatus> {
    let signals = Signals::new();
    let (mut child, _running) = signals.start(command)?;
    child.wait()
}
