//! Where facts are read: this machine, or a recording of one.

mod here;
mod kcmp;
mod nvml;
mod recorder;
mod recording;
mod windows;

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use self::here::Here;
pub use self::recorder::Recorder;
pub use self::recording::{Recording, RecordingError};
use crate::machine::Nvml;

/// Access to the facts of a machine.
///
/// Paths are absolute. No method panics, whatever the files hold.
pub trait Source: Send + Sync + 'static {
    /// Returns a file's bytes, at most 16 MiB of them.
    ///
    /// # Errors
    ///
    /// Why the file cannot be read.
    fn read(&self, path: &str) -> Result<Vec<u8>, Skipped>;

    /// Returns the names in a folder, in no order.
    ///
    /// # Errors
    ///
    /// Why the folder cannot be listed.
    fn list(&self, path: &str) -> Result<Vec<String>, Skipped>;

    /// Returns where a symbolic link points to.
    ///
    /// # Errors
    ///
    /// Why the link cannot be read.
    fn link(&self, path: &str) -> Result<String, Skipped>;

    /// Returns a variable of the environment.
    fn variable(&self, name: &str) -> Option<String>;

    /// Asks NVML for everything that the rules need, in one go.
    ///
    /// # Errors
    ///
    /// NVML cannot be loaded. A library that is there and fails is in [`Nvml::failure`].
    fn nvml(&self) -> Result<Nvml, Skipped>;

    /// Returns the kernel's log since boot, a line for each message: `[seconds] text`.
    ///
    /// # Errors
    ///
    /// Why the log cannot be read.
    fn kernel_log(&self) -> Result<String, Skipped>;

    /// Asks Windows, under WSL2, for its counters of the card, and for its settings of WSL2: lines
    /// of fields with `|` between them.
    ///
    /// # Errors
    ///
    /// Windows cannot be asked or does not answer in time.
    fn windows(&self) -> Result<String, Skipped>;

    /// Runs a command that only looks, and returns what it prints.
    ///
    /// # Errors
    ///
    /// The command is missing, fails, or takes longer than `limit`.
    fn run(&self, command: &[&str], limit: Duration) -> Result<String, Skipped>;

    /// Returns whether two descriptors, each given by pid and number, are one open file.
    ///
    /// # Errors
    ///
    /// Why the descriptors cannot be compared.
    fn is_same_file(&self, one: (u32, u32), other: (u32, u32)) -> Result<bool, Skipped>;

    /// Waits until the next sample; a recording does not.
    fn pause(&self, time: Duration);
}

/// The reason why a fact is left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    /// The kind of reason.
    pub why: Why,
    /// The reason in words, with what it is about.
    pub text: String,
}

/// Kinds of reasons why a fact is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// There is no such file, library or command.
    Missing,
    /// This user may not look.
    Denied,
    /// The look took longer than its time limit.
    TimedOut,
    /// Something else failed.
    Failed,
}

impl Skipped {
    pub(crate) fn new(why: Why, text: impl Into<String>) -> Skipped {
        Skipped { why, text: text.into() }
    }

    fn io(path: &str, error: &std::io::Error) -> Skipped {
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
