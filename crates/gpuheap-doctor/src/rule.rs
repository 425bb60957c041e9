//! A rule, and what it finds.

use serde::Serialize;

use crate::machine::Machine;
use crate::words::hanging;

/// A rule: data, and the function that looks.
#[derive(Debug, Clone, Copy)]
pub struct Rule {
    /// The stable id: `P01`.
    pub id: &'static str,
    /// How bad a finding is.
    pub severity: Severity,
    /// The rule's subject, a noun phrase.
    pub title: &'static str,
    /// The long text of `gpuheap explain ID`.
    pub explanation: &'static str,
    pub(crate) look: fn(&Machine) -> Vec<Finding>,
}

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Memory is lost, or the device cannot be used.
    Fail,
    /// Memory is held that may be got back, or will be wanted.
    Warning,
    /// A fact that explains a figure. Shown on request.
    Info,
}

/// One finding: a fact, its cause, and the command that goes on from there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The rule's id.
    pub rule: &'static str,
    /// How bad the finding is.
    pub severity: Severity,
    /// The fact, with its numbers.
    pub fact: String,
    /// The cause.
    pub cause: String,
    /// The command to type.
    pub command: String,
    /// Processes that hold the memory.
    pub pids: Vec<u32>,
    /// The memory that it is about, bytes; 0 if that is not known.
    pub bytes: u64,
}

impl Rule {
    /// Returns what the rule finds on a machine.
    pub fn look(&self, machine: &Machine) -> Vec<Finding> {
        (self.look)(machine)
    }

    /// Renders the explanation for `width` columns.
    pub fn long_text(&self, width: usize) -> String {
        let mut text = String::new();
        hanging(&mut text, "", "", self.explanation, width);
        text
    }

    pub(crate) fn found(
        &self,
        fact: impl Into<String>,
        cause: impl Into<String>,
        command: impl Into<String>,
    ) -> Finding {
        Finding {
            rule: self.id,
            severity: self.severity,
            fact: fact.into(),
            cause: cause.into(),
            command: command.into(),
            pids: Vec::new(),
            bytes: 0,
        }
    }
}

impl Finding {
    pub(crate) fn with_pids(mut self, pids: impl IntoIterator<Item = u32>) -> Finding {
        self.pids = pids.into_iter().collect();
        self
    }

    pub(crate) fn with_bytes(mut self, bytes: u64) -> Finding {
        self.bytes = bytes;
        self
    }
}
