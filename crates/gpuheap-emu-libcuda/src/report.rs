//! Report of the process, written to a folder when the process ends.
//!
//! Its reader is `gpuheap dry-run`. A process that ends by a signal or by `_exit` writes none.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use gpuheap_emu::Emulator;

/// Functions that the library exports and refuses, with their calls.
static REFUSED: Mutex<BTreeMap<&str, u64>> = Mutex::new(BTreeMap::new());

/// Counts a call of a function that is refused.
pub(crate) fn refused(function: &'static str) {
    *REFUSED.lock().unwrap_or_else(PoisonError::into_inner).entry(function).or_default() += 1;
}

/// Writes `driver.PID.json` into the folder. A failure has no reader: the process is ending.
pub(crate) fn write(folder: &Path, device: &Emulator) {
    let file = folder.join(format!("driver.{}.json", std::process::id()));
    let _ = fs::write(file, text(device));
}

fn text(device: &Emulator) -> String {
    let options = device.options();
    let devices = (0..).zip(options.shown()).map(|(shown, number)| {
        let (profile, usage) = (&options.devices[number], device.usage(shown));
        let in_use = usage.context + usage.plain + usage.pools + usage.vmm + usage.late;
        format!(
            "{{\"name\": \"{}\", \"total\": {}, \"peak_in_use\": {}, \"in_use_at_end\": {in_use}, \
             \"largest_refused_bytes\": {}}}",
            escaped(&profile.name),
            profile.memory_bytes,
            usage.high_water,
            usage.largest_refused,
        )
    });
    let counts = device.counts();
    let mut refused: BTreeMap<&str, u64> = device.refused().into_iter().collect();
    refused.extend(REFUSED.lock().unwrap_or_else(PoisonError::into_inner).iter());
    let refused = refused
        .iter()
        .map(|(function, times)| format!("{{\"function\": \"{function}\", \"times\": {times}}}"));
    let mut text = String::new();
    // A write to a string never fails.
    let _ = writeln!(
        text,
        "{{\"devices\": [{}], \"asked_for_free_memory\": {}, \"copies_to_host\": {}, \
         \"launches_dropped\": {}, \"out_of_memory\": {}, \"refused\": [{}], \
         \"export_table_asked\": {}}}",
        devices.collect::<Vec<_>>().join(", "),
        device.calls_of("cuMemGetInfo_v2"),
        counts.copies_to_host,
        counts.launches_dropped,
        counts.out_of_memory,
        refused.collect::<Vec<_>>().join(", "),
        device.calls_of("cuGetExportTable") > 0,
    );
    text
}

/// Returns a text for the inside of a JSON string.
fn escaped(text: &str) -> String {
    let special = |c: char| c.is_control() || c == '"' || c == '\\';
    text.chars().map(|c| if special(c) { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_within_their_quotes() {
        assert_eq!(escaped("a \"b\" \\ c\n"), "a  b    c ");
    }
}
