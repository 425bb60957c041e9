//! Holds the process's only emulated driver. Every exported call reaches the driver through this
//! module.

use std::ffi::c_uint;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use gpuheap_driver::{CUresult, Driver};
use gpuheap_emu::{Emulator, Finding, FindingKind, Messages, Options};

use crate::settings::{Settings, SettingsError};
use crate::{copies, report, requests};

const MESSAGES: Messages = Messages("libcuda");

/// The process's driver, created by the first call. It is never destroyed, because other libraries
/// may call it until the process ends.
static PROCESS: OnceLock<Process> = OnceLock::new();

/// Driver for a forked child. It is never initialised.
static CHILD: OnceLock<Emulator> = OnceLock::new();

/// Id of the process that initialised the driver; 0 until then.
static INITIALISED_BY: AtomicU32 = AtomicU32::new(0);

/// Number of findings written to stderr.
static REPORTED: AtomicUsize = AtomicUsize::new(0);

/// Maximum number of findings written to stderr. Further findings rarely show anything new, and
/// reading them would slow down each driver call.
const REPORTED_AT_MOST: usize = 100;

struct Process {
    device: Emulator,
    driver_version: i32,
    checks: bool,
    log: bool,
    /// Folder for the report; `None` to write no report.
    report: Option<PathBuf>,
    /// Error in the environment variables. With an error, `cuInit` fails, so the device is not
    /// used.
    refused: Option<SettingsError>,
}

fn process() -> &'static Process {
    PROCESS.get_or_init(|| {
        MESSAGES.say_panics();
        let (settings, refused) = match Settings::read() {
            Ok(settings) => (settings, None),
            Err(error) => (Settings::default(), Some(error)),
        };
        Process {
            driver_version: settings.options.driver_version,
            checks: settings.options.checks,
            log: settings.log,
            report: settings.report,
            refused,
            device: Emulator::new(settings.options),
        }
    })
}

/// Implements `cuInit`. Errors in the environment variables are reported only here.
pub(crate) fn initialise(flags: c_uint) -> CUresult {
    guarded(|| {
        if forked() {
            return CUresult::ERROR_NOT_INITIALIZED;
        }
        if let Some(error) = &process().refused {
            MESSAGES.say(&error.to_string());
            return CUresult::ERROR_INVALID_VALUE;
        }
        // SAFETY: the function takes no pointers.
        let code = unsafe { process().device.cuInit(flags) };
        if code.is_success()
            && INITIALISED_BY.swap(std::process::id(), Ordering::Relaxed) != std::process::id()
            && process().report.is_some()
        {
            // SAFETY: the function does not unwind, and this library is never unmapped.
            unsafe { libc::atexit(write_report) };
        }
        code
    })
}

extern "C" fn write_report() {
    // Ignores failures: the process is exiting.
    let _ = guarded(|| {
        if let (Some(folder), false) = (&process().report, forked()) {
            report::write_last(folder, &process().device);
        }
        CUresult::SUCCESS
    });
}

/// Calls the process's driver. In a forked child, calls a driver that was never initialised.
pub(crate) fn call(body: impl FnOnce(&Emulator) -> CUresult) -> CUresult {
    guarded(|| {
        let process = process();
        if forked() {
            let devices = Vec::new();
            let driver_version = process.driver_version;
            let options = Options { devices, driver_version, ..Options::default() };
            return body(CHILD.get_or_init(|| Emulator::new(options)));
        }
        let code = body(&process.device);
        copies::call_back();
        if let Some(folder) = &process.report {
            report::keep_up(folder, &process.device, requests::take());
        }
        if process.checks {
            report_findings(&process.device);
        }
        code
    })
}

/// Calls `body` with the process's driver, for example to report a heap's new block. Has no result.
pub(crate) fn report(body: impl FnOnce(&Emulator)) {
    // Ignores the error that a panic returns, because the panic hook has reported the panic.
    let _ = call(|device| {
        body(device);
        CUresult::SUCCESS
    });
}

/// Returns the code of `body`, or `ERROR_UNKNOWN` if `body` panics.
pub(crate) fn guarded(body: impl FnOnce() -> CUresult) -> CUresult {
    // After a panic, the emulator's state may be wrong. The library still continues, because a
    // panic must not unwind into the program. The panic hook has reported the panic.
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(CUresult::ERROR_UNKNOWN)
}

/// Returns `true` in a forked child of the process that initialised the driver. As with the real
/// driver, such a child has no device: threads that exist only in the parent may hold locks.
fn forked() -> bool {
    let owner = INITIALISED_BY.load(Ordering::Relaxed);
    owner != 0 && owner != std::process::id()
}

/// Returns the emulated driver's version, 1000 × major + 10 × minor.
pub(crate) fn driver_version() -> i32 {
    process().driver_version
}

/// Writes a line to stderr if the log is on.
pub(crate) fn log(line: impl FnOnce() -> String) {
    if process().log {
        MESSAGES.say(&line());
    }
}

fn report_findings(device: &Emulator) {
    let reported = REPORTED.load(Ordering::Relaxed);
    if reported >= REPORTED_AT_MOST {
        return;
    }
    let Ok(findings) = device.findings() else { return };
    // Only the thread that raises the count reports the findings, so each finding is reported once.
    let upto = findings.len().min(REPORTED_AT_MOST);
    if upto > reported
        && REPORTED.compare_exchange(reported, upto, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    {
        for finding in &findings[reported..upto] {
            MESSAGES.say(&finding.to_string());
        }
        if upto == REPORTED_AT_MOST {
            MESSAGES.say(&format!(
                "{REPORTED_AT_MOST} findings are shown; further ones are counted until the program exits"
            ));
            // SAFETY: the function does not unwind, and this library is never unmapped.
            unsafe { libc::atexit(report_count) };
        }
    }
}

/// Writes the number of findings, including those that were not written to stderr.
extern "C" fn report_count() {
    // Ignores failures: the process is exiting.
    let _ = guarded(|| {
        if !forked()
            && let Ok(findings) = process().device.findings()
        {
            let count = |finding: &Finding| match finding.kind {
                FindingKind::Dropped(count) => count,
                _ => 1,
            };
            let count: usize = findings.iter().map(count).sum();
            MESSAGES.say(&format!(
                "{count} findings, the first {REPORTED_AT_MOST} of them shown above"
            ));
        }
        CUresult::SUCCESS
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error() {
        assert_eq!(guarded(|| panic!("on purpose")), CUresult::ERROR_UNKNOWN);
        assert_eq!(guarded(|| CUresult::SUCCESS), CUresult::SUCCESS);
    }
}
