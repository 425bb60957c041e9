//! Runs all rules on one machine, and renders the findings as text and as JSON.

use gpuheap_text::{count, cut, hanging};
use serde::Serialize;

use crate::facts::{CudaProbe, Outcome};
use crate::machine::Machine;
use crate::rule::{Finding, Severity};
use crate::rules::RULES;

/// Findings of the rules on a machine.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// The driver's version; empty if unknown.
    pub driver: String,
    /// Number of devices that the driver lists.
    pub devices: usize,
    /// Number of rules that ran.
    pub rules: usize,
    /// Findings, worst first.
    pub findings: Vec<Finding>,
    /// Results of probing CUDA; empty if CUDA was not probed.
    pub cuda: Vec<CudaProbe>,
    /// Probes that were skipped, each with the reason.
    pub skipped: Vec<SkippedProbe>,
}

/// Probe that was skipped.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SkippedProbe {
    /// The probe's subject.
    pub probe: &'static str,
    /// Reason.
    pub reason: String,
}

/// Runs all rules on a machine that was [examined](Machine::examine).
pub fn diagnose(machine: &Machine) -> Report {
    let mut findings: Vec<Finding> = RULES.iter().flat_map(|rule| rule.check(machine)).collect();
    findings.sort_by_key(|finding| finding.severity);
    let skipped = machine.skipped.iter();
    Report {
        driver: machine.nvml.as_ref().map_or_else(|_| String::new(), |nvml| nvml.driver.clone()),
        devices: machine.devices().len(),
        rules: RULES.len(),
        findings,
        cuda: machine.cuda.clone(),
        skipped: skipped
            .map(|(probe, skipped)| SkippedProbe { probe, reason: skipped.text.clone() })
            .collect(),
    }
}

impl Report {
    /// Returns `true` if nothing worse than [`Severity::Info`] was found.
    pub fn is_healthy(&self) -> bool {
        self.findings.iter().all(|finding| finding.severity == Severity::Info)
    }

    /// Renders the report for a terminal of `width` columns. If `all` is `true`, also includes
    /// skipped probes, and findings that only inform.
    pub fn render(&self, width: usize, all: bool) -> String {
        let mut text = String::new();
        for finding in
            self.findings.iter().filter(|finding| all || finding.severity != Severity::Info)
        {
            let mark = finding.severity.mark();
            hanging(&mut text, &format!("{mark} {}  ", finding.rule), INDENT, &finding.fact, width);
            hanging(&mut text, INDENT, INDENT, &finding.cause, width);
            text.push_str(&format!("{INDENT}$ {}\n", finding.command));
        }
        if text.is_empty() {
            let devices = count(self.devices as u64, "GPU");
            text = format!("nothing found: {devices}, {}\n", count(self.rules as u64, "rule"));
        }
        if !self.cuda.is_empty() {
            text.push_str("CUDA, probed in a process of its own:\n");
        }
        for probe in &self.cuda {
            // The finding about a failed probe already contains the probe's text.
            let result = match probe.outcome {
                Outcome::Failed => "failed, see G16".to_owned(),
                _ => probe.result(),
            };
            let line = format!("  {:<24} {result}", probe.name());
            text.push_str(&cut(line.trim_end(), width));
            text.push('\n');
        }
        if all {
            for skipped in &self.skipped {
                let line = format!("- skipped: {}: {}", skipped.probe, skipped.reason);
                text.push_str(&cut(&line, width));
                text.push('\n');
            }
        }
        text
    }

    /// Renders the report as JSON that `docs/doctor.schema.json` describes.
    pub fn to_json(&self) -> String {
        crate::json(self)
    }
}

/// Indent below a finding's mark and id.
const INDENT: &str = "       ";
