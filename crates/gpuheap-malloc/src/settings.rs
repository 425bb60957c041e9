//! Reads the environment variables of the drop-in that other parts of gpuheap do not read.

use std::sync::OnceLock;

use gpuheap_catch::messages;

/// Settings of the process.
#[derive(Clone, Copy)]
pub(crate) struct Settings {
    /// `true` if a free without stream order waits for all work of the device.
    pub(crate) waits: bool,
    pub(crate) report: Report,
}

/// Condition under which the drop-in writes its report at the exit of the program.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Report {
    /// Writes the report if memory is live at the exit, or was live at a reset of a device.
    Leaks,
    Always,
    Off,
}

/// Returns the settings; `None` if a variable has an invalid value. The environment is read once.
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

/// Returns the value that a variable selects from `values`. If the variable is not set, returns the
/// first value. For any other text, writes a message and returns `None`.
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
