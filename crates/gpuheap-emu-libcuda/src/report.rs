//! Writes a report on the process to a folder. `gpuheap dry-run` reads the report.
//!
//! The report is written when the process exits, when a peak grows, and when a request is refused.
//! So a process that ends by a signal or by `_exit` also leaves a report.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

use gpuheap_emu::Emulator;

use crate::requests::{self, escaped};

/// Number of calls to each refused function.
static REFUSED: Mutex<BTreeMap<&str, u64>> = Mutex::new(BTreeMap::new());

/// Counts a call of a refused function.
pub(crate) fn refused(function: &'static str) {
    *REFUSED.lock().unwrap_or_else(PoisonError::into_inner).entry(function).or_default() += 1;
}

/// Libraries with a statically linked CUDA runtime. They are recognised by their requests for the
/// driver's private tables.
static EXPORT_TABLES: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
/// NVIDIA's compilers. They request the driver's private tables, but allocate no device memory.
const COMPILERS: [&str; 3] = ["libnvrtc", "libnvJitLink", "libnvptxcompiler"];

/// Records the library that requested a private table of the driver.
pub(crate) fn note_export_table() {
    let library = requests::calling_library();
    if !COMPILERS.iter().any(|compiler| library.starts_with(compiler)) {
        EXPORT_TABLES.lock().unwrap_or_else(PoisonError::into_inner).insert(library);
    }
}

/// Value of [`Emulator::peak_mark`] at the last report.
static WRITTEN_PEAK: AtomicU64 = AtomicU64::new(0);
/// Time of the last report. Locked while a report is written.
static WRITTEN_AT: parking_lot::Mutex<Option<Instant>> = parking_lot::Mutex::new(None);
/// A report is written at once if the peak has grown by more than 1/`GROWTH` since the last report.
/// If a program takes a device's memory in small pieces, this makes 500 reports. Each takes 0.1 ms.
const GROWTH: u64 = 64;
/// Interval after which a report is written even if the peak has grown by less than 1/`GROWTH`.
const EVERY: Duration = Duration::from_secs(1);

/// Writes the report after a driver call if the peak grew enough or the call refused a request.
pub(crate) fn keep_up(folder: &Path, device: &Emulator, is_refused: bool) {
    let (peak, written) = (device.peak_mark(), WRITTEN_PEAK.load(Ordering::Relaxed));
    if peak == written && !is_refused {
        return;
    }
    let Some(mut at) = WRITTEN_AT.try_lock() else { return };
    let is_due = at.is_none_or(|at| at.elapsed() > EVERY);
    if is_refused || is_due || peak > written + written / GROWTH {
        WRITTEN_PEAK.store(peak, Ordering::Relaxed);
        write(folder, device);
        *at = Some(Instant::now());
    }
}

/// Writes the report at the end of the process. If a driver call is writing a report, waits for it,
/// but only for a second. If a signal handler called `exit` on the thread of that call, the call
/// never completes. The earlier report then stays.
pub(crate) fn write_last(folder: &Path, device: &Emulator) {
    const PATIENCE: Duration = Duration::from_secs(1);
    if let Some(_at) = WRITTEN_AT.try_lock_for(PATIENCE) {
        write(folder, device);
    }
}

/// Time at which the system started the process, in its ticks since boot; 0 if unknown. Process ids
/// cannot order the processes of a run, because the system starts again with small ids after the
/// largest.
static BEGAN: LazyLock<u64> = LazyLock::new(|| {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Field 2, the program's name in brackets, may contain spaces. The time is field 22.
    let fields = stat.rsplit(')').next().unwrap_or_default();
    fields.split_whitespace().nth(19).and_then(|ticks| ticks.parse().ok()).unwrap_or(0)
});

/// Replaces `driver.PID.json` in the folder atomically: readers see either the old or the new
/// content. Ignores failures. Lock [`WRITTEN_AT`] during the call.
fn write(folder: &Path, device: &Emulator) {
    static FIRST: Once = Once::new();
    FIRST.call_once(|| keep_earlier(folder));
    let file = folder.join(format!("driver.{}.json", std::process::id()));
    let part = file.with_extension("part");
    if fs::write(&part, text(device)).is_ok() {
        let _ = fs::rename(part, file);
    }
}

/// Adds a number to the names of reports that this process wrote before an `exec`. The new names
/// are `KIND.PID-N.ENDING`. All reports found here are old: this function runs before the driver's
/// first report, and other libraries and the Python hook write their reports later.
fn keep_earlier(folder: &Path) {
    let pid = std::process::id();
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    let names: Vec<String> = files.filter_map(|file| file.file_name().into_string().ok()).collect();
    if !names.contains(&format!("driver.{pid}.json")) {
        return;
    }
    let kept = format!("driver.{pid}-");
    let number = names.iter().filter(|name| name.starts_with(&kept)).count() + 1;
    for name in &names {
        if let Some((kind, ending)) = name.split_once(&format!(".{pid}.")) {
            let new = format!("{kind}.{pid}-{number}.{ending}");
            let _ = fs::rename(folder.join(name), folder.join(new));
        }
    }
}

/// Returns `true` if PyTorch's CUDA library is loaded. PyTorch never unloads it, so a positive
/// result is kept.
fn has_pytorch() -> bool {
    static IS_FOUND: AtomicBool = AtomicBool::new(false);
    let is_mapped =
        || fs::read_to_string("/proc/self/maps").is_ok_and(|maps| maps.contains("/libtorch_cuda."));
    let is_found = IS_FOUND.load(Ordering::Relaxed) || is_mapped();
    IS_FOUND.store(is_found, Ordering::Relaxed);
    is_found
}

fn text(device: &Emulator) -> String {
    let options = device.options();
    let devices = (0..).zip(options.shown()).map(|(shown, number)| {
        let (profile, usage) = (&options.devices[number], device.usage(shown));
        let in_use = usage.in_use();
        format!(
            "{{\"name\": \"{}\", \"number\": {number}, \"total\": {}, \"peak_in_use\": {}, \"in_use_at_end\": {in_use}, \
             \"largest_refused_bytes\": {}, \"peak_managed\": {}, \"peak_demand\": {}}}",
            escaped(&profile.name),
            profile.memory_bytes,
            usage.high_water,
            usage.largest_refused,
            usage.managed_high_water,
            usage.demand_high_water,
        )
    });
    let counts = device.counts();
    let mut refused: BTreeMap<&str, u64> = device.refused().into_iter().collect();
    refused.extend(REFUSED.lock().unwrap_or_else(PoisonError::into_inner).iter());
    let refused = refused
        .iter()
        .map(|(function, times)| format!("{{\"function\": \"{function}\", \"times\": {times}}}"));
    let tables = EXPORT_TABLES.lock().unwrap_or_else(PoisonError::into_inner);
    let tables: Vec<_> = tables.iter().map(|library| format!("\"{}\"", escaped(library))).collect();
    let mut text = String::new();
    // Ignores the result: writing to a string never fails.
    let _ = writeln!(
        text,
        "{{\"began\": {}, \"devices\": [{}], \"asked_for_free_memory\": {}, \"copies_to_host\": {}, \
         \"launches_dropped\": {}, \"out_of_memory\": {}, \"refused\": [{}], \
         \"export_tables\": [{}], \"has_pytorch\": {}, \"requests\": [{}]}}",
        *BEGAN,
        devices.collect::<Vec<_>>().join(", "),
        device.calls_of("cuMemGetInfo_v2"),
        counts.copies_to_host,
        counts.launches_dropped,
        counts.out_of_memory,
        refused.collect::<Vec<_>>().join(", "),
        tables.join(", "),
        has_pytorch(),
        requests::json(),
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_report_waits_for_others() {
        let (folder, device) = (tempfile::tempdir().unwrap(), Emulator::new(Default::default()));
        std::thread::scope(|scope| {
            let _other = WRITTEN_AT.lock();
            let last = scope.spawn(|| write_last(folder.path(), &device));
            std::thread::sleep(Duration::from_millis(50));
            assert!(!last.is_finished());
        });
    }
}
