//! Fuzzes the reports that the processes of a dry run write. Each line of the input has a report's
//! file name, a blank, and the report's content.

#![no_main]

use gpuheap_dry_run::{Ended, judge_reports};
use libfuzzer_sys::fuzz_target;

/// Maximum number of reports of a run. More reports take time and find no other faults.
const REPORTS: usize = 16;

fuzz_target!(|data: &[u8]| {
    let lines = data.split(|byte| *byte == b'\n').take(REPORTS);
    let files: Vec<(&str, &[u8])> = lines.filter_map(file).collect();
    let ends = [Ended::Exit(0), Ended::Exit(1), Ended::Signal(9), Ended::TimeLimit];
    let verdict = judge_reports(&files, ends[data.len() % ends.len()]);
    serde_json::to_string(&verdict).expect("a verdict is JSON");
});

/// Returns the name and content of a report. Skips snapshots, because another target fuzzes them.
/// Skips names that could be paths to another folder.
fn file(line: &[u8]) -> Option<(&str, &[u8])> {
    let (name, content) = line.split_at(line.iter().position(|byte| *byte == b' ')?);
    let name = std::str::from_utf8(name).ok()?;
    let is_plain = name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-'));
    let is_report = name.ends_with(".json") || name.ends_with(".txt");
    (is_plain && is_report && name.len() < 100).then_some((name, &content[1..]))
}
