//! Compares two recordings. Finds the sites that hold more or less memory.

use std::collections::BTreeMap;

use gpuheap_text::{Amount, add_line, cut_name, hanging, printable};
use gpuheap_trace::Holder;
use serde::Serialize;

use crate::report::Report;
use crate::text::{WIDTH, others};

/// Number of rows of a long table. One more row sums up the other rows.
const ROWS: usize = 12;

/// Memory of a site in two recordings, in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Change {
    /// Name of the site.
    pub site: String,
    /// Live bytes in the first recording.
    pub before_bytes: u64,
    /// Live bytes in the second recording.
    pub after_bytes: u64,
}

impl Change {
    /// Returns the difference, in bytes.
    pub fn bytes(&self) -> i128 {
        i128::from(self.after_bytes) - i128::from(self.before_bytes)
    }
}

/// Comparison of one device's memory in two recordings.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Comparison {
    /// Version of the fields.
    pub schema: u32,
    /// Name of the first file.
    pub before: String,
    /// Name of the second file.
    pub after: String,
    /// The device's index; `None` if the format does not record it.
    pub device: Option<u32>,
    /// Peak of live bytes in the first recording.
    pub before_peak_bytes: u64,
    /// Peak of live bytes in the second recording.
    pub after_peak_bytes: u64,
    /// Sites with different memory at the reports' moments ([`Report::at`]), largest difference
    /// first.
    pub at_moment: Vec<Change>,
    /// Sites whose memory at the end differs, largest difference first.
    pub at_end: Vec<Change>,
}

impl Comparison {
    /// Compares the reports of two recordings.
    pub fn new(before: &Report, after: &Report) -> Self {
        Self {
            schema: 1,
            before: before.name.clone(),
            after: after.name.clone(),
            device: before.device,
            before_peak_bytes: before.summary.peak_live_bytes,
            after_peak_bytes: after.summary.peak_live_bytes,
            at_moment: changes(&before.held, &after.held),
            at_end: changes(&before.left, &after.left),
        }
    }

    /// Renders the comparison as tables for a terminal of 80 columns.
    pub fn render(&self) -> String {
        let mut text = String::new();
        let device = self.device.map_or_else(String::new, |device| format!(", device {device}"));
        hanging(
            &mut text,
            "",
            "  ",
            &printable(&format!("{} → {}{device}", self.before, self.after)),
            WIDTH,
        );
        add_line!(
            &mut text,
            "Live at the peak: {} → {}",
            Amount(self.before_peak_bytes),
            Amount(self.after_peak_bytes)
        );
        add_changes(&mut text, "Who holds more, or less, at the peak?", &self.at_moment);
        add_changes(&mut text, "Who leaves more, or less, at the end?", &self.at_end);
        text
    }
}

fn changes(before: &[Holder], after: &[Holder]) -> Vec<Change> {
    let mut sites: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for holder in before {
        sites.entry(&holder.name).or_default().0 = holder.bytes;
    }
    for holder in after {
        sites.entry(&holder.name).or_default().1 = holder.bytes;
    }
    let mut changes: Vec<Change> = sites
        .into_iter()
        .filter(|(_, (before, after))| before != after)
        .map(|(site, (before_bytes, after_bytes))| Change {
            site: site.to_owned(),
            before_bytes,
            after_bytes,
        })
        .collect();
    changes.sort_by_key(|change| std::cmp::Reverse(change.bytes().unsigned_abs()));
    changes
}

fn add_changes(text: &mut String, question: &str, changes: &[Change]) {
    add_line!(text, "\n{question}");
    if changes.is_empty() {
        add_line!(text, "  No site.");
        return;
    }
    add_line!(text, "{:>13}  {:>12}  {:>12}  site", "change", "before", "after");
    let shown = if changes.len() <= ROWS + 1 { changes.len() } else { ROWS };
    for change in &changes[..shown] {
        add_line!(
            text,
            "{:>13}  {:>12}  {:>12}  {}",
            signed(change.bytes()),
            Amount(change.before_bytes),
            Amount(change.after_bytes),
            cut_name(&change.site, WIDTH - 43)
        );
    }
    let rest = &changes[shown..];
    if !rest.is_empty() {
        let sum = rest.iter().map(Change::bytes).sum();
        let others = others(rest.len());
        add_line!(text, "{:>13}  {:>12}  {:>12}  {others}", signed(sum), "", "");
    }
}

fn signed(bytes: i128) -> String {
    let sign = match bytes {
        0 => "",
        1.. => "+",
        _ => "−",
    };
    format!("{sign}{}", Amount(u64::try_from(bytes.unsigned_abs()).unwrap_or(u64::MAX)))
}
