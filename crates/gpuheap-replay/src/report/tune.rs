//! Text of a search for settings.

use super::device_words;
use crate::text::{Amount, add_line, exported, grouped, paragraph, typed};
use crate::tune::Family;
use crate::tune::TraceSearch;

/// Renders searches for a terminal of 80 columns, one section for each trace.
pub fn tune(searches: &[TraceSearch]) -> String {
    let sections: Vec<String> = searches.iter().map(section).collect();
    sections.join("\n")
}

fn section(search: &TraceSearch) -> String {
    let mut text = String::new();
    add_line!(&mut text, "{} ({})", search.name, search.format);
    let words = device_words(&search.device, &search.recorded);
    let (tried, framework) = (grouped(search.tried), search.family.title());
    paragraph(&mut text, &format!("{tried} settings of {framework} tried on {words}"));
    text.push('\n');
    if search.lacks_device {
        paragraph(
            &mut text,
            "A request failed when this was recorded, and the recording does not name its device: \
             give it, as in --card \"T4 16GB\", to see what gets through there.",
        );
    }
    let is_served = search.candidates.iter().any(|candidate| !candidate.fails);
    let result = match (is_served, search.recorded.failed.is_empty()) {
        (true, true) => "Nothing beats these in bytes and driver calls:",
        (true, false) => {
            "Nothing beats these in bytes and driver calls (at least: a request failed when this \
             was recorded, and what would have followed is not known):"
        }
        (false, _) => "The program gets through under none of them. This one serves it longest:",
    };
    paragraph(&mut text, result);
    add_line!(&mut text, "{:>14}  {:>12}  setting", "peak reserved", "driver calls");
    for candidate in &search.candidates {
        let peak = Amount(candidate.reserved_peak).to_string();
        let calls = grouped(candidate.driver_calls);
        let is_variable = search.family == Family::Torch;
        if !is_variable && candidate.setting.chars().count() <= 48 {
            add_line!(&mut text, "{peak:>14}  {calls:>12}  {}", candidate.setting);
            continue;
        }
        add_line!(&mut text, "{peak:>14}  {calls:>12}");
        match is_variable {
            true => exported(&mut text, "  ", "  ", &candidate.setting),
            false => typed(&mut text, "  ", "      ", &candidate.setting),
        }
        if let Some(python) = &candidate.python {
            typed(&mut text, "  and in Python: ", "      ", python);
        }
    }
    if search.family == Family::Torch {
        add_line!(&mut text, "Lines are for the shell, before python starts.");
    }
    if search.recorded.waits {
        paragraph(
            &mut text,
            "Blocks wait for other streams in this program. The figures are for the times that were \
             recorded; gpuheap replay --pool gives a range.",
        );
    }
    text
}
