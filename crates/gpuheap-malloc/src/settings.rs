//! The drop-in's own variables of the environment.

use std::sync::OnceLock;

use crate::messages;

/// Settings of the process.
#[derive(Clone, Copy)]
pub(crate) struct Settings {
    /// `true` if a free that is in no stream's order waits for the device.
    pub(crate) waits: bool,
    pub(crate) report: Report,
}

/// When the report at exit is written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Report {
    /// If memory is live.
    Leaks,
    Always,
    Off,
}

/// Returns the settings; `None` if one is invalid. They are read once.
pub(crate) fn get() -> Option<Settings> {
    static SETTINGS: OnceLock<Option<Settings>> = OnceLock::new();
    *SETTINGS.get_or_init(read)
}

fn read() -> Option<Settings> {
    let waits = choice("GPUHEAP_MALLOC_WAIT", &[("device", true), ("none", false)]);
    let reports = [("leaks", Report::Leaks), ("always", Report::Always), ("off", Report::Off)];
    let report = choice("GPUHEAP_MALLOC_REPORT", &reports);
    Some(Settings { waits: waits?, report: report? })
}

/// Returns the value of a variable, by default the first; `None` after a message if it has another.
fn choice<T: Copy>(variable: &str, values: &[(&str, T)]) -> Option<T> {
    let written = std::env::var_os(variable).unwrap_or_default();
    let written = written.to_string_lossy();
    let trimmed = written.trim();
    if trimmed.is_empty() {
        return values.first().map(|(_, value)| *value);
    }
    let found = values.iter().find(|(name, _)| name.eq_ignore_ascii_case(trimmed));
    if found.is_none() {
        let names: Vec<_> = values.iter().map(|(name, _)| *name).collect();
        messages::write(&format!(
            "{variable} is set to '{trimmed}', and it is one of {}; no allocation is served",
            names.join(", ")
        ));
    }
    found.map(|(_, value)| *value)
}
