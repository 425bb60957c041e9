//! Reads the settings of the emulated device from environment variables.

use std::env::{self, VarError};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gpuheap_emu::{Account, Kernels, Options, Profile, Schedule};

const DEVICE: &str = "GPUHEAP_EMULATED_DEVICE";
const SCHEDULE: &str = "GPUHEAP_EMULATED_SCHEDULE";
const CHECKS: &str = "GPUHEAP_EMULATED_CHECKS";
const KERNELS: &str = "GPUHEAP_EMULATED_KERNELS";
const DRIVER: &str = "GPUHEAP_EMULATED_DRIVER";
const LOG: &str = "GPUHEAP_EMULATED_LOG";
const REPORT: &str = "GPUHEAP_EMULATED_REPORT";
const ACCOUNT: &str = "GPUHEAP_EMULATED_ACCOUNT";
/// Environment variable of the real driver. An empty value hides all devices.
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

const SCHEDULES: &str =
    "immediate, on-demand, seeded:N with a whole number, or lag:N with nanoseconds";
const SWITCH: &str = "0 or 1";
const ACCOUNTS: &str =
    "a file that may be written, of at most 256 processes, with at most 16 devices";
const KERNEL_MODES: &str = "own or no-op";
const DRIVERS: &str = "a version from 12.0 to 13.0, such as 12.4";

/// Settings of the process's emulated driver.
#[derive(Default)]
pub(crate) struct Settings {
    pub(crate) options: Options,
    /// `true` to log failed `cuGetProcAddress` lookups and calls of refused functions to stderr.
    pub(crate) log: bool,
    /// Folder for the report; `None` to write no report.
    pub(crate) report: Option<PathBuf>,
}

impl Settings {
    /// Reads the environment variables. If a variable is missing or empty, its default applies. The
    /// defaults are one `h200`, work done immediately, no checks, no kernels except gpuheap's, CUDA
    /// 13.0, no log and no report. Processes share no account of their memory.
    pub(crate) fn read() -> Result<Settings, SettingsError> {
        let schedule = variable(SCHEDULE, SCHEDULES, schedule)?.unwrap_or(Schedule::Immediate);
        let mut options = Options {
            schedule,
            checks: variable(CHECKS, SWITCH, switch)?.unwrap_or(false),
            // Queued work needs a worker thread: the program may wait for a callback without
            // calling the driver.
            worker: schedule != Schedule::Immediate,
            ..Options::default()
        };
        if let Some(devices) = variable(DEVICE, &profiles(), Profile::list)? {
            options.devices = devices;
        }
        if let Some(list) = env::var_os(VISIBLE) {
            options = options.with_visible_devices(&list.to_string_lossy());
        }
        if let Some(kernels) = variable(KERNELS, KERNEL_MODES, kernels)? {
            options.kernels = kernels;
        }
        if let Some(version) = variable(DRIVER, DRIVERS, driver_version)? {
            options.driver_version = version;
        }
        // An account has room for a limited number of devices.
        let fits = options.devices.len() <= Account::MOST_DEVICES;
        let account = |path: &str| fits.then(|| Account::open(Path::new(path)).ok())?;
        options.account = variable(ACCOUNT, ACCOUNTS, account)?.map(Arc::new);
        let report = env::var_os(REPORT).filter(|folder| !folder.is_empty()).map(PathBuf::from);
        Ok(Settings { options, log: variable(LOG, SWITCH, switch)?.unwrap_or(false), report })
    }
}

/// An environment variable with an invalid value.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SettingsError {
    variable: &'static str,
    value: String,
    valid: String,
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={:?} is not valid; use {}", self.variable, self.value, self.valid)
    }
}

fn variable<T>(
    name: &'static str,
    valid: &str,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<Option<T>, SettingsError> {
    let value = match env::var(name) {
        Ok(value) => value,
        Err(VarError::NotPresent) => return Ok(None),
        Err(VarError::NotUnicode(value)) => value.to_string_lossy().into_owned(),
    };
    match value.trim() {
        "" => Ok(None),
        text => match parse(text) {
            Some(parsed) => Ok(Some(parsed)),
            None => Err(SettingsError { variable: name, value, valid: valid.to_owned() }),
        },
    }
}

fn profiles() -> String {
    format!(
        "{}, bytes such as 16GiB, or a description such as name=RTX 3090;memory=24258MiB; with commas \
         between several devices",
        Profile::NAMES.join(", ")
    )
}

fn schedule(text: &str) -> Option<Schedule> {
    match text.split_once(':') {
        None if text == "immediate" => Some(Schedule::Immediate),
        None if text == "on-demand" => Some(Schedule::OnDemand),
        Some(("seeded", seed)) => Some(Schedule::Seeded(whole(seed)?)),
        Some(("lag", time)) => Some(Schedule::Lag(Duration::from_nanos(whole(time)?))),
        _ => None,
    }
}

fn kernels(text: &str) -> Option<Kernels> {
    match text {
        "own" => Some(Kernels::Own),
        "no-op" => Some(Kernels::NoOp),
        _ => None,
    }
}

fn switch(text: &str) -> Option<bool> {
    match text {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}

/// Parses `12.4` as 12040. Returns `None` for versions newer than the drivers with which the
/// function table was compared, because a newer driver may have changed a signature.
fn driver_version(text: &str) -> Option<i32> {
    let (major, minor) = text.split_once('.')?;
    let (major, minor) = (whole(major)?, whole(minor)?);
    let known = matches!((major, minor), (12, 0..=9) | (13, 0));
    known.then_some(major as i32 * 1000 + minor as i32 * 10)
}

/// Parses digits only: no sign, no blank, no fraction.
fn whole(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_have_names() {
        assert_eq!(schedule("immediate"), Some(Schedule::Immediate));
        assert_eq!(schedule("on-demand"), Some(Schedule::OnDemand));
        assert_eq!(schedule("seeded:42"), Some(Schedule::Seeded(42)));
        assert_eq!(schedule("lag:1500"), Some(Schedule::Lag(Duration::from_nanos(1500))));
        for wrong in ["seeded", "seeded:", "seeded:-1", "immediate:1", "later", "lag"] {
            assert_eq!(schedule(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn versions_are_those_of_the_table() {
        assert_eq!(driver_version("12.0"), Some(12_000));
        assert_eq!(driver_version("12.4"), Some(12_040));
        assert_eq!(driver_version("13.0"), Some(13_000));
        for wrong in ["11.8", "12.10", "13.1", "14.0", "13", "12.-1", "new", "."] {
            assert_eq!(driver_version(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn documents_list_each_variable() {
        let rows_of = |text: &'static str| -> Vec<&str> {
            text.lines().filter(|line| line.starts_with("| `") && line.contains('_')).collect()
        };
        let readme = rows_of(include_str!("../README.md"));
        let page = include_str!("../../../docs/emulator.md");
        let page = page.split_once("### Settings").unwrap().1.split_once("\n### ").unwrap().0;
        assert_eq!(rows_of(page), readme, "docs/emulator.md and the README differ");
        let names: Vec<&str> = readme.iter().filter_map(|row| row.split('`').nth(1)).collect();
        let all = [DEVICE, SCHEDULE, CHECKS, KERNELS, DRIVER, ACCOUNT, REPORT, LOG, VISIBLE];
        assert_eq!(names, all);
        for name in Profile::NAMES {
            assert!(readme[0].contains(&format!("`{name}`")), "no {name} in {}", readme[0]);
        }
        for form in ["immediate", "on-demand", "seeded:N", "lag:N"] {
            let named = [readme[1], SCHEDULES].map(|text| text.contains(form));
            assert_eq!(named, [true, true], "{form}");
        }
    }
}
