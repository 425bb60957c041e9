//! Renders reports as text, with the verdict first and then the table.

mod cards;
mod moment;
mod table;
mod tune;
mod verdict;

pub use self::cards::list_cards;
pub use self::moment::render_moment;
pub use self::tune::tune;
pub use self::verdict::Detail;
use crate::recorded::Recorded;
use crate::replay::DeviceUsed;
use crate::run::TraceReport;
use crate::text::{Amount, add_line, count, paragraph};

/// Renders reports for a terminal of 80 columns, one section for each trace.
pub fn render(reports: &[TraceReport], detail: Detail) -> String {
    let sections: Vec<String> = reports.iter().map(|report| section(report, detail)).collect();
    sections.join("\n")
}

fn section(report: &TraceReport, detail: Detail) -> String {
    let mut text = String::new();
    add_header(&mut text, report);
    verdict::add(&mut text, report, detail);
    text.truncate(text.trim_end().len());
    text.push_str("\n\n");
    table::add(&mut text, report);
    text
}

fn add_header(text: &mut String, report: &TraceReport) {
    let summary = &report.summary;
    let device = report.recorded_on.map(|device| format!(", device {device}")).unwrap_or_default();
    add_line!(text, "{} ({}{device})", report.name, report.format);
    add_line!(
        text,
        "{} on {}, {} live at the peak",
        count(summary.events, "event"),
        count(summary.streams as u64, "stream"),
        Amount(summary.peak_live_bytes)
    );
    let of_run = || match report.recorded.run_limit() {
        Some(_) => ", as the run was (--limit)",
        None => "",
    };
    let typed = |limit| {
        report.limit_typed.clone().unwrap_or_else(|| format!("{}{}", Amount(limit), of_run()))
    };
    let limit = report.limit.map(|limit| format!(", limited to {}", typed(limit)));
    let device = device_words(&report.device, &report.recorded);
    paragraph(text, &format!("replayed on {device}{}", limit.unwrap_or_default()));
    text.push('\n');
}

fn device_words(device: &DeviceUsed, recorded: &Recorded) -> String {
    let context = device.total.saturating_sub(device.usable);
    match (&device.typed, device.is_recorded, device.is_emulated) {
        (Some(typed), ..) => format!("an emulated {} with {typed} of usable memory", device.name),
        (None, true, _) => match recorded.limit {
            Some(limit) => format!(
                "the memory that the run had: {} or more, less than {}",
                Amount(limit.least),
                Amount(limit.below)
            ),
            None => device.name.clone(),
        },
        (None, false, true) if device.is_of_run => format!(
            "the device of the run: {} with {} of usable memory ({} were in use before)",
            device.name,
            Amount(device.usable),
            Amount(context)
        ),
        (None, false, true) => format!(
            "an emulated {} with {} of usable memory (after CUDA's own {}{})",
            device.name,
            Amount(device.usable),
            Amount(context),
            if device.is_estimated { ", estimated" } else { "" }
        ),
        (None, false, false) => format!("{} with {}", device.name, Amount(device.total)),
    }
}
