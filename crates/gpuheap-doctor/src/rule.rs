//! Rule of the doctor, and its findings.

use gpuheap_text::hanging;
use serde::Serialize;

use crate::evidence;
use crate::machine::{Gpu, Machine, Process};
use crate::status::Account;

/// Check of a machine for one kind of problem with GPU memory.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Rule {
    /// Stable id: `P01`.
    #[serde(rename = "rule")]
    pub id: &'static str,
    /// Severity of its findings.
    pub severity: Severity,
    /// The rule's subject, a noun phrase.
    pub title: &'static str,
    #[serde(skip)]
    check: Check,
}

/// Function that runs a rule, once for the machine or once for each device or process.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Check {
    /// Checks the whole machine once.
    Machines(fn(&Machine) -> Vec<Finding>),
    /// Checks each device that NVML lists.
    Devices(fn(&Machine, &Gpu) -> Option<Finding>),
    /// Checks each device that NVML can read, with the account of its memory.
    Accounts(fn(&Machine, &Gpu, &Account) -> Option<Finding>),
    /// Checks each process that NVML lists or that has a device open.
    Processes(fn(&Machine, &Process) -> Option<Finding>),
}

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Memory is lost, or the device cannot be used.
    Fail,
    /// A process holds memory that it could perhaps give back, or so much that requests may fail.
    Warning,
    /// The finding explains a figure. It is shown on request.
    Info,
}

impl Severity {
    /// Returns the character that is printed before a finding of this severity.
    pub fn mark(self) -> char {
        match self {
            Severity::Fail => '✗',
            Severity::Warning => '!',
            Severity::Info => 'i',
        }
    }

    /// Returns the severity in a word.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Severity::Fail => "failure",
            Severity::Warning => "warning",
            Severity::Info => "information",
        }
    }
}

/// Finding: a fact, its cause, and the command to continue with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Id of the rule.
    pub rule: &'static str,
    /// Severity of the finding.
    pub severity: Severity,
    /// The fact, with its numbers.
    pub fact: String,
    /// The cause.
    pub cause: String,
    /// The command to type.
    pub command: String,
    /// Processes that hold the memory.
    pub pids: Vec<u32>,
    /// Memory that the finding is about, in bytes; 0 if it is not known.
    pub bytes: u64,
}

/// Page with a section for each rule. Each heading begins with the rule's id.
const PAGE: &str = include_str!("../rules.md");

impl Rule {
    pub(crate) const fn new(
        id: &'static str,
        severity: Severity,
        title: &'static str,
        check: Check,
    ) -> Rule {
        Rule { id, severity, title, check }
    }

    /// Returns the long text of `gpuheap explain ID`: the rule's section of `rules.md`.
    pub fn explanation(&self) -> String {
        let section = PAGE.split("\n## ").find(|section| section.starts_with(self.id));
        let lines = section.unwrap_or_default().lines().skip(2);
        lines.collect::<Vec<_>>().join(" ").trim_end().to_owned()
    }

    /// Returns the rule's findings on a machine.
    pub fn check(&self, machine: &Machine) -> Vec<Finding> {
        let devices = machine.devices().iter();
        match self.check {
            Check::Machines(check) => check(machine),
            Check::Devices(check) => devices.filter_map(|gpu| check(machine, gpu)).collect(),
            Check::Accounts(check) => evidence::accounts(machine)
                .filter_map(|(gpu, account)| check(machine, gpu, &account))
                .collect(),
            Check::Processes(check) => evidence::with_memory(machine)
                .filter_map(|process| check(machine, process))
                .collect(),
        }
    }

    /// Renders the rule with its explanation for `width` columns.
    pub fn render(&self, width: usize) -> String {
        let mut text = format!("{}: {} ({})\n", self.id, self.title, self.severity.name());
        hanging(&mut text, "", "", &self.explanation(), width);
        text
    }

    /// Renders the rule with its explanation as JSON that `docs/explain.schema.json` describes.
    pub fn to_json(&self) -> String {
        #[derive(Serialize)]
        struct Explained<'r> {
            #[serde(flatten)]
            rule: &'r Rule,
            explanation: String,
        }
        crate::json(&Explained { rule: self, explanation: self.explanation() })
    }

    pub(crate) fn finding(
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

    pub(crate) fn with_severity(mut self, severity: Severity) -> Finding {
        self.severity = severity;
        self
    }

    pub(crate) fn with_bytes(mut self, bytes: u64) -> Finding {
        self.bytes = bytes;
        self
    }
}
