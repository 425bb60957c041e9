//! Starts a test of this suite in a separate process. The test publishes its heaps' state.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::command::{Ran, ran};

/// A process that runs a test. Dropping the value kills the process.
pub(crate) struct Program(pub(crate) Child);

impl Program {
    /// Starts the test `test` of this suite, with sockets and working folder in `folder`. Waits
    /// until the test prints `ready`.
    pub(crate) fn start(test: &str, folder: &Path) -> Program {
        let command = Command::new(std::env::current_exe().unwrap());
        Program::spawned(command, test, folder).unwrap()
    }

    /// Starts a test like [`Program::start`], with `command` before the test's arguments; `None` if
    /// the command ends before it prints `ready`.
    pub(crate) fn spawned(mut command: Command, test: &str, folder: &Path) -> Option<Program> {
        command.args(["--exact", test, "--ignored", "--nocapture"]);
        command
            .env("XDG_RUNTIME_DIR", folder)
            .current_dir(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut program = Program(command.spawn().unwrap());
        let output = BufReader::new(program.0.stdout.take().unwrap());
        output.lines().any(|line| line.unwrap().contains("ready")).then_some(program)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs the command with the sockets in `folder`.
pub(crate) fn gpuheap(folder: &Path, arguments: &[&str]) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuheap"));
    ran(command.env("XDG_RUNTIME_DIR", folder).args(arguments))
}
