//! Facts about a machine, and [`Source`], the trait that reads them. A source is the machine
//! itself, or a recording of a machine.

mod cuda;
mod nvml;
mod paths;

use std::fmt;
use std::time::Duration;

use gpuheap_publish::Detail;
use serde::{Deserialize, Serialize};

pub use self::cuda::{CudaProbe, Outcome, PROBES};
pub(crate) use self::cuda::{end_line, parse_probes};
pub use self::nvml::{Gpu, Kind, Listed, Nvml, NvmlFailure};
pub(crate) use self::paths::{device, is_kept_variable, numbered_device, windows_drive};

/// Source of facts about a machine.
///
/// Paths are absolute. No method panics on any content of the files.
pub trait Source: Send + Sync + 'static {
    /// Returns the first 16 MiB of a file.
    ///
    /// # Errors
    ///
    /// Returns the reason if the file cannot be read.
    fn read(&self, path: &str) -> Result<Vec<u8>, Skipped>;

    /// Returns the text of a file; empty if the file cannot be read.
    fn read_text(&self, path: &str) -> String {
        String::from_utf8_lossy(&self.read(path).unwrap_or_default()).into_owned()
    }

    /// Returns the names in a folder, in no order.
    ///
    /// # Errors
    ///
    /// Returns the reason if the folder cannot be listed.
    fn list(&self, path: &str) -> Result<Vec<String>, Skipped>;

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    ///
    /// Returns the reason if the link cannot be read.
    fn link(&self, path: &str) -> Result<String, Skipped>;

    /// Returns an environment variable.
    fn variable(&self, name: &str) -> Option<String>;

    /// Reads all facts that rules need from NVML, in one pass.
    ///
    /// # Errors
    ///
    /// Returns the reason if NVML cannot be loaded. If a loaded NVML fails, its error is in
    /// [`Nvml::failure`].
    fn nvml(&self) -> Result<Nvml, Skipped>;

    /// Returns the kernel's log since boot, a line for each message: `[seconds] text`.
    ///
    /// # Errors
    ///
    /// Returns the reason if the log cannot be read.
    fn kernel_log(&self) -> Result<String, Skipped>;

    /// Returns Windows' counters of the card and the settings of WSL2, read from inside WSL2. Each
    /// line has fields separated by `|`.
    ///
    /// # Errors
    ///
    /// Returns the reason if Windows cannot be reached, or does not answer in time.
    fn windows(&self) -> Result<String, Skipped>;

    /// Returns the processes that publish their memory, a line of JSON for each. The default
    /// implementation returns an error. A recording returns the recorded lines.
    ///
    /// # Errors
    ///
    /// Returns the reason if the processes are not known.
    fn programs(&self, _detail: Detail) -> Result<String, Skipped> {
        Err(Skipped::new(Why::Missing, "programs that publish: not known"))
    }

    /// Runs `command`, a program that probes CUDA. Returns the program's lines, and a last line
    /// about its end. If `command` is empty, runs nothing. A recording returns its recorded lines
    /// for any command.
    ///
    /// # Errors
    ///
    /// Returns the reason if the command cannot be started.
    fn cuda(&self, command: &[String]) -> Result<String, Skipped>;

    /// Runs a command and returns its output. The command must only read, and change nothing.
    ///
    /// # Errors
    ///
    /// Returns the reason if the command is missing, fails, or takes longer than `limit`.
    fn run(&self, command: &[&str], limit: Duration) -> Result<String, Skipped>;

    /// Returns `true` if two descriptors, each given by pid and number, share an open file.
    ///
    /// # Errors
    ///
    /// Returns the reason if the descriptors cannot be compared.
    fn is_same_file(&self, one: (u32, u32), other: (u32, u32)) -> Result<bool, Skipped>;

    /// Waits `time` before the caller reads a fact again. A recording does not wait, because its
    /// facts never change.
    fn pause(&self, time: Duration);
}

/// Reason why a fact is left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    /// Kind of reason.
    pub why: Why,
    /// Reason in words, with its subject.
    pub text: String,
}

/// Category of the reason why a fact is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// The file, library or command does not exist.
    Missing,
    /// This user lacks permission.
    Denied,
    /// The time limit was reached.
    TimedOut,
    /// Something else failed.
    Failed,
}

impl Skipped {
    pub(crate) fn new(why: Why, text: impl Into<String>) -> Skipped {
        Skipped { why, text: text.into() }
    }

    pub(crate) fn io(path: &str, error: &std::io::Error) -> Skipped {
        let why = match error.kind() {
            std::io::ErrorKind::NotFound => Why::Missing,
            std::io::ErrorKind::PermissionDenied => Why::Denied,
            std::io::ErrorKind::TimedOut => Why::TimedOut,
            _ => Why::Failed,
        };
        Skipped::new(why, format!("{path}: {error}"))
    }
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Skipped {}
