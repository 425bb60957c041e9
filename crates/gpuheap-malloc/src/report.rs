//! Writes the account of allocations at the end of the process.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

use gpuheap::{Bytes, Tracking};
use gpuheap_catch::messages;
use gpuheap_driver::fork;

use crate::counts::{OUT_OF_MEMORY, PASSED_ON, REFUSED, USED_CUDA};
use crate::devices::{self, Served};
use crate::missing_driver;
use crate::resets::{self, Resets};
use crate::settings::{self, Report};
use crate::unserved::Account;

/// Exit handler. The loader calls it after the program's exit handlers and the destructors of the
/// program's libraries.
#[used]
// SAFETY: the section holds functions without arguments. The loader calls them at the exit.
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;

extern "C" fn at_exit() {
    // At exit, no code is left to handle a failure.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        missing_driver::report_at_exit();
        // In a forked child, a lock may be held by a thread that exists only in the parent.
        if fork::count() != 0 {
            return;
        }
        let past = resets::all();
        let is_used = USED_CUDA.load(Ordering::Relaxed) || !past.is_empty() || !Account::is_empty();
        let is_served = devices::all().next().is_some();
        // In a process that used CUDA, an earlier call has read the settings. Other processes do
        // not read them at their exit.
        if (is_used || is_served)
            && let Some(settings) = settings::get()
        {
            let served = devices::all().map(|served| served.device.ordinal());
            let ended = past.iter().filter(|(_, past)| past.heaps > 0).map(|(device, _)| *device);
            let ordinals: BTreeSet<_> = served.chain(ended).collect();
            for &ordinal in &ordinals {
                let served = devices::all().find(|served| served.device.ordinal() == ordinal);
                let past = past.get(&ordinal).cloned().unwrap_or_default();
                account(&format!("cuda:{ordinal}"), served, &past, settings.report);
            }
            if ordinals.is_empty() && settings.report == Report::Always {
                let mut text = format!("process {}: no allocation was served", std::process::id());
                if !Account::is_empty() {
                    let _ = write!(text, "; beside the heap: {Account}");
                }
                messages::write(&text);
            }
        }
    }));
}

/// Writes the account of a device. It covers the device's heap, if any, and all heaps that ended
/// because the device was reset.
fn account(name: &str, served: Option<&Served>, past: &Resets, report: Report) {
    let usage = served.and_then(|served| served.heap.usage().ok());
    let stats = usage.as_ref().map(|usage| usage.stats).unwrap_or_default();
    let live = stats.live_allocations;
    if report == Report::Off || (report == Report::Leaks && live == 0 && past.lost == 0) {
        return;
    }
    let (live_bytes, live_peak, reserved_peak) =
        usage.map_or((0, 0, 0), |usage| (usage.live, usage.live_peak, usage.reserved_peak));
    let number = std::process::id();
    let state = match live {
        0 if past.lost == 0 => "all allocations were freed".to_owned(),
        0 => "no allocation is live".to_owned(),
        1 => format!("1 allocation is live, {}", Bytes(live_bytes)),
        _ => format!("{live} allocations are live, {}", Bytes(live_bytes)),
    };
    let mut text = format!("process {number}, {name}: {state}");
    if past.resets > 0 {
        let _ = write!(text, "\n  {}", resets(past));
    }
    let _ = write!(
        text,
        "\n  allocated {} times, {} at most at once; taken from the device {} at most\n  \
         out of memory {} times; frees of memory from elsewhere {}; frees of unknown addresses {}",
        past.allocations + stats.allocations,
        Bytes(past.live_peak.max(live_peak)),
        Bytes(past.reserved_peak.max(reserved_peak)),
        OUT_OF_MEMORY.load(Ordering::Relaxed),
        PASSED_ON.load(Ordering::Relaxed),
        REFUSED.load(Ordering::Relaxed),
    );
    if !Account::is_empty() {
        let _ = write!(text, "\n  beside the heap, by all of the process: {Account}");
    }
    let tracked = served.filter(|served| served.heap.tracking() == Tracking::Backtraces);
    let leaks = tracked.filter(|_| live > 0).and_then(|served| served.heap.leaks().ok());
    if let Some(leaks) = &leaks {
        let _ = write!(text, "\n{leaks}");
    }
    if let Some(leaks) = &past.leaks {
        let _ = write!(text, "\nlost at the last reset with live memory: {leaks}");
    }
    let is_known = (live == 0 || leaks.is_some()) && (past.lost == 0 || past.leaks.is_some());
    if !is_known {
        text.push_str("\n  set GPUHEAP_TRACK to backtraces to see where they were made");
    }
    messages::write(&text);
}

/// Returns the sentence about a device's resets and the memory that was lost in them.
fn resets(past: &Resets) -> String {
    let times = match past.resets {
        1 => "reset once".to_owned(),
        times => format!("reset {times} times"),
    };
    match past.lost {
        0 => format!("{times}, with no allocation live"),
        1 => format!("{times}: 1 live allocation was lost with it, {}", Bytes(past.lost_bytes)),
        lost => format!("{times}: {lost} live allocations were lost, {}", Bytes(past.lost_bytes)),
    }
}
