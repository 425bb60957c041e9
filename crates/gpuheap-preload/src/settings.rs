//! Reads the recorder's settings from environment variables that `gpuheap run` sets.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::OnceLock;

/// Settings of the process.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    /// Path of the capture; `None` to record nothing. The last `%p` stands for the process id.
    pub(crate) output: Option<OsString>,
    /// File to which the capture's path is appended; `None` for no file.
    pub(crate) list: Option<PathBuf>,
    /// `true` to record native stacks.
    pub(crate) stacks: bool,
    /// `true` to record frames of Python with the native frames.
    pub(crate) python: bool,
    /// `true` to record copies.
    pub(crate) copies: bool,
    /// `true` to record the blocks of frameworks' pools.
    pub(crate) frameworks: bool,
    /// `true` to publish the live memory to other processes of the user.
    pub(crate) publish: bool,
    /// Limit of the device memory of the process; `None` for no limit.
    pub(crate) limit: Option<Limit>,
    /// File through which a run's processes share the limit; `None` if they do not share it.
    pub(crate) ledger: Option<PathBuf>,
    /// Number of the request that fails, counted from 1; 0 for none.
    pub(crate) fail_nth: u64,
    /// Sum of requested bytes after which all requests fail; 0 for no such failure.
    pub(crate) fail_after: u64,
    /// Maximum size of a capture, in bytes.
    pub(crate) max_size: u64,
}

/// Limit of device memory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Limit {
    Bytes(u64),
    /// Percentage of the device's memory.
    Percent(f64),
}

/// Returns the settings. The environment is read once.
pub(crate) fn get() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(|| Settings {
        output: env::var_os("GPUHEAP_RUN_OUTPUT").filter(|path| !path.is_empty()),
        list: env::var_os("GPUHEAP_RUN_LIST").map(PathBuf::from),
        stacks: env::var("GPUHEAP_RUN_STACKS").as_deref() != Ok("0"),
        python: env::var("GPUHEAP_RUN_PYTHON").as_deref() != Ok("0"),
        copies: env::var("GPUHEAP_RUN_COPIES").as_deref() == Ok("1"),
        frameworks: env::var("GPUHEAP_RUN_FRAMEWORKS").as_deref() == Ok("1"),
        publish: env::var("GPUHEAP_PUBLISH").is_ok_and(|text| is_on(text.trim())),
        limit: env::var("GPUHEAP_RUN_LIMIT").ok().and_then(|text| limit(&text)),
        ledger: env::var_os("GPUHEAP_RUN_LEDGER").map(PathBuf::from),
        fail_nth: number("GPUHEAP_RUN_FAIL_NTH").unwrap_or(0),
        fail_after: number("GPUHEAP_RUN_FAIL_AFTER").unwrap_or(0),
        max_size: number("GPUHEAP_RUN_MAX_SIZE").unwrap_or(u64::MAX),
    })
}

/// Returns `true` for a value that switches publishing on. `control` would allow changes of heaps
/// too. The recorder has no heaps, so `control` means `on` here.
fn is_on(text: &str) -> bool {
    ["1", "true", "on", "yes", "control"].iter().any(|on| text.eq_ignore_ascii_case(on))
}

fn limit(text: &str) -> Option<Limit> {
    match text.strip_suffix('%') {
        Some(percent) => percent.parse().ok().map(Limit::Percent),
        None => text.parse().ok().map(Limit::Bytes),
    }
}

fn number(variable: &str) -> Option<u64> {
    env::var(variable).ok()?.parse().ok()
}

impl Settings {
    /// Returns `true` if calls are recorded or limited.
    pub(crate) fn is_on(&self) -> bool {
        self.output.is_some() || self.limit.is_some() || self.fail_nth > 0 || self.fail_after > 0
    }
}
