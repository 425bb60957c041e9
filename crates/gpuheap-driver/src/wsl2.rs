//! Figures of WSL2 that no call of the driver reports.

/// Percentage of a device's free memory that programs under WSL2 may plan with. Windows decides how
/// much stays on the device, and refuses requests below the free memory that the driver reports.
///
/// One report bounds it: an LLM server failed with "device not ready" at 88 % of two devices, and
/// ran at 80 % (microsoft/WSL issue 41176, July 2026). It was not measured here.
pub const USABLE_PERCENT: u64 = 80;

/// Returns the part of `free` bytes that programs under WSL2 may plan with.
pub const fn usable(free: u64) -> u64 {
    free / 100 * USABLE_PERCENT
}
