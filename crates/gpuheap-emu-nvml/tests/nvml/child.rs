//! Processes of the tests' own: the libraries read their environment once in each.

use std::process::{Command, Output};

use tempfile::TempDir;

use crate::library;

/// Returns a command that runs one ignored test of this test binary in its own process.
pub(crate) fn ignored_test(name: &str, folder: &TempDir, variables: &[(&str, &str)]) -> Command {
    let mut command = library::command(&std::env::current_exe().unwrap(), folder, variables);
    command.args([name, "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
    command
}

/// Returns the output of a program, which must succeed and write nothing to stderr.
pub(crate) fn quiet_success(output: Output) -> String {
    let stdout = String::from_utf8(output.stdout).unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{}\n{stdout}\n{stderr}", output.status);
    assert_eq!(stderr, "", "\n{stdout}");
    stdout
}
