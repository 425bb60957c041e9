//! Metrics of a machine.

mod devices;
mod metric;
mod programs;
mod samples;

use std::time::{Duration, SystemTime};

use gpuheap_doctor::{Machine, Severity, diagnose};

pub use self::metric::Metric;
pub use self::programs::MOST_LINES;
use self::samples::{Labels, Samples, Value};

/// Time of a reading.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    /// Start of the reading.
    pub start: SystemTime,
    /// Duration of the reading.
    pub duration: Duration,
}

/// Returns the samples of a machine that was examined.
pub(crate) fn samples(machine: &Machine, reading: Reading, top_lines: usize) -> Samples {
    let mut samples = Samples::default();
    samples.add(Metric::Build, vec![("version", env!("CARGO_PKG_VERSION").to_owned())], 1);
    let start = reading.start.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    samples.set(Metric::ReadingTimestamp, Value::Seconds(start.as_secs_f64()));
    samples.set(Metric::ReadingDuration, Value::Seconds(reading.duration.as_secs_f64()));
    for (probe, _) in &machine.skipped {
        samples.add(Metric::ReadingSkipped, vec![("probe", (*probe).to_owned())], 1);
    }
    devices::add(&mut samples, machine);
    programs::add(&mut samples, machine, top_lines);
    add_findings(&mut samples, machine);
    samples
}

fn add_findings(samples: &mut Samples, machine: &Machine) {
    for finding in diagnose(machine).findings {
        let severity = match finding.severity {
            Severity::Fail => "fail",
            Severity::Warning => "warning",
            Severity::Info => "info",
        };
        let labels: Labels =
            vec![("rule", finding.rule.to_owned()), ("severity", severity.to_owned())];
        samples.add(Metric::FindingBytes, labels.clone(), finding.bytes);
        samples.add(Metric::Finding, labels, 1);
    }
}
