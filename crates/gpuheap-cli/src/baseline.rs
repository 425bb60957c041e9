//! The baseline of `gpuheap doctor`: a file in the user's state folder.

use std::time::{SystemTime, UNIX_EPOCH};

use gpuheap_doctor::{Baseline, Machine, Report};

use crate::failure::Failure;
use crate::verdict::Verdict;
use crate::{output, state};

/// Name of the baseline's file.
const FILE: &str = "baseline.json";

/// Writes the baseline, and prints its path.
///
/// # Errors
///
/// Returns a failure if no state folder is known, or if the file cannot be written.
pub(crate) fn save(machine: &Machine, report: &Report) -> Result<Verdict, Failure> {
    let path = state::path(FILE)?;
    let name = path.display();
    state::write(&path, &Baseline::of(machine, report, now()).to_json())?;
    output::print(&format!("saved {name}\n")).map(|()| Verdict::Fine)
}

/// Prints the differences from the baseline. The verdict is `Findings` if there are findings that
/// the baseline lacks.
///
/// # Errors
///
/// Returns a failure if no baseline was saved, or if it cannot be read.
pub(crate) fn show(machine: &Machine, report: &Report) -> Result<Verdict, Failure> {
    let path = state::path(FILE)?;
    let name = path.display();
    let text = std::fs::read_to_string(&path).map_err(|error| {
        Failure::wrong_use(format!(
            "--baseline {name}: {error}; write one first: gpuheap doctor --baseline save"
        ))
    })?;
    let before = Baseline::parse(&text).map_err(|error| {
        Failure::wrong_use(format!(
            "--baseline {name} is no baseline: {error}; write it anew: gpuheap doctor --baseline save"
        ))
    })?;
    let after = Baseline::of(machine, report, now());
    output::print(&before.changes(&after))?;
    Ok(match before.new_rules(&after).next() {
        Some(_) => Verdict::Findings,
        None => Verdict::Fine,
    })
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
