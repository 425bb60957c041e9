//! Figures of a machine at one time, for later comparison.

use std::collections::BTreeSet;
use std::fmt::Write;

use serde::{Deserialize, Serialize};

use crate::doctor::Report;
use crate::machine::Machine;
use crate::rule::Severity;
use crate::status;
use crate::words::{age, mib};

/// Largest difference that is not reported, bytes. Clients of the driver without a context come and
/// go with some MiB.
const NOISE: u64 = 16 << 20;

/// Figures and findings of a machine at one time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Baseline {
    schema: u32,
    /// Seconds since 1970.
    pub saved_at: u64,
    /// The driver's version; empty if unknown.
    pub driver: String,
    /// Devices that answered.
    pub devices: Vec<Figures>,
    /// Ids of the rules with a finding worse than [`Severity::Info`](crate::Severity::Info).
    pub rules: BTreeSet<String>,
}

/// Figures of one device, bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figures {
    /// Permanent identity: `GPU-…`.
    pub uuid: String,
    /// NVML's index.
    pub index: u32,
    /// The device's name.
    pub name: String,
    /// Memory not in use.
    pub free: u64,
    /// Memory that driver and firmware keep.
    pub reserved: u64,
    /// Memory in use, without `reserved`.
    pub used: u64,
    /// Memory in use by no listed process. Negative if processes share memory.
    pub unaccounted: i64,
    /// Number of listed processes.
    pub processes: usize,
}

impl Baseline {
    /// Takes the figures of a machine and its report. `now` is in seconds since 1970.
    pub fn of(machine: &Machine, report: &Report, now: u64) -> Baseline {
        let accounts = status::of(machine);
        let figures = |account: status::Account| Figures {
            uuid: account.uuid,
            index: account.index.unwrap_or(0),
            name: account.name,
            free: account.free_bytes,
            reserved: account.reserved_bytes.unwrap_or(0),
            used: account.used_bytes,
            unaccounted: account.unaccounted_bytes,
            processes: account.processes.len(),
        };
        let answered = accounts.into_iter().filter(|account| account.failure.is_none());
        let found = report.findings.iter().filter(|finding| finding.severity != Severity::Info);
        Baseline {
            schema: 1,
            saved_at: now,
            driver: report.driver.clone(),
            devices: answered.map(figures).collect(),
            rules: found.map(|finding| finding.rule.to_owned()).collect(),
        }
    }

    /// Parses the output of [`to_json`](Baseline::to_json).
    ///
    /// # Errors
    ///
    /// Returns an error if the text is not a baseline, or has another schema.
    pub fn parse(text: &str) -> Result<Baseline, String> {
        let baseline: Baseline = serde_json::from_str(text).map_err(|error| error.to_string())?;
        match baseline.schema {
            1 => Ok(baseline),
            other => Err(format!("it has schema {other}, and this gpuheap knows 1")),
        }
    }

    /// Renders the baseline as JSON.
    pub fn to_json(&self) -> String {
        // Serialization of numbers, texts and lists never fails.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// Returns the rules with findings in `now` that have none in this baseline.
    pub fn new_rules<'a>(&'a self, now: &'a Baseline) -> impl Iterator<Item = &'a str> {
        now.rules.difference(&self.rules).map(String::as_str)
    }

    /// Describes the differences in `now`, one line for each.
    pub fn changes(&self, now: &Baseline) -> String {
        let mut text = String::new();
        let mut line = |words: String| {
            // A write to a string never fails.
            let _ = writeln!(text, "{words}");
        };
        let old = age(now.saved_at.saturating_sub(self.saved_at));
        if self.driver != now.driver {
            let name = |driver: &str| {
                if driver.is_empty() { "unknown".to_owned() } else { driver.to_owned() }
            };
            line(format!("driver: {}, was {}", name(&now.driver), name(&self.driver)));
        }
        for after in &now.devices {
            let number = after.index;
            let Some(before) = self.devices.iter().find(|before| before.uuid == after.uuid) else {
                line(format!("GPU {number} ({}) was not there", after.name));
                continue;
            };
            let amounts = [
                ("used", i128::from(before.used), i128::from(after.used)),
                ("reserved by driver", i128::from(before.reserved), i128::from(after.reserved)),
                ("unaccounted", i128::from(before.unaccounted), i128::from(after.unaccounted)),
                ("free", i128::from(before.free), i128::from(after.free)),
            ];
            for (what, before, after) in amounts {
                let by = (after - before).unsigned_abs();
                if by < u128::from(NOISE) {
                    continue;
                }
                let by = mib(u64::try_from(by).unwrap_or(u64::MAX));
                let sign = if after > before { '+' } else { '-' };
                let (before, after) = (signed(before), signed(after));
                line(format!("GPU {number}: {what} {after}, was {before} ({sign}{by})"));
            }
            if before.processes != after.processes {
                let (after, before) = (after.processes, before.processes);
                line(format!("GPU {number}: processes {after}, were {before}"));
            }
        }
        let is_gone = |before: &&Figures| now.devices.iter().all(|after| after.uuid != before.uuid);
        for gone in self.devices.iter().filter(is_gone) {
            line(format!("GPU {} ({}) does not answer any more", gone.index, gone.name));
        }
        for rule in now.rules.difference(&self.rules) {
            line(format!("{rule} is new: gpuheap doctor"));
        }
        for rule in self.rules.difference(&now.rules) {
            line(format!("{rule} is not found any more"));
        }
        match text.as_str() {
            "" => format!("no change since the baseline, saved {old} ago\n"),
            changes => format!("since the baseline, saved {old} ago:\n{changes}"),
        }
    }
}

fn signed(bytes: i128) -> String {
    let sign = if bytes < 0 { "-" } else { "" };
    format!("{sign}{}", mib(u64::try_from(bytes.unsigned_abs()).unwrap_or(u64::MAX)))
}
