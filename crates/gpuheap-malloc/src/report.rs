//! The account at the end of the process.

use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

use gpuheap::{Bytes, Tracking};
use gpuheap_driver::fork;

use crate::counts::{OUT_OF_MEMORY, PASSED_ON, REFUSED};
use crate::devices::{self, Served};
use crate::foreign::Account;
use crate::say::say;
use crate::settings::{self, Report};

/// Called by the loader after the program's handlers for the exit and the destructors of its
/// libraries.
#[used]
// SAFETY: the section holds functions without arguments, which are called at the exit.
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;

extern "C" fn at_exit() {
    // At exit, no code can handle a failure any more.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        let is_served = devices::all().next().is_some();
        // Read before, or nothing was ever served or counted.
        if fork::count() == 0
            && (is_served || !Account::is_empty())
            && let Some(settings) = settings::get()
        {
            for served in devices::all() {
                account(served, settings.report);
            }
            if !is_served && settings.report == Report::Always {
                say(&format!(
                    "process {}: no allocation was served; beside the heap: {Account}",
                    std::process::id()
                ));
            }
        }
    }));
}

/// Writes the account of a heap.
fn account(served: &Served, report: Report) {
    let Ok(usage) = served.heap().usage() else { return };
    let live = usage.stats.live_allocations;
    if report == Report::Off || (report == Report::Leaks && live == 0) {
        return;
    }
    let name = served.device().name();
    let number = std::process::id();
    let mut text = match live {
        0 => format!("process {number}, {name}: all allocations were freed\n"),
        1 => format!("process {number}, {name}: 1 allocation is live, {}\n", Bytes(usage.live)),
        _ => format!(
            "process {number}, {name}: {live} allocations are live, {}\n",
            Bytes(usage.live)
        ),
    };
    let _ = write!(
        text,
        "  allocated {} times, {} at most at once; taken from the device {} at most\n  \
         out of memory {} times; frees of memory from elsewhere {}; frees of unknown addresses {}",
        usage.stats.allocations,
        Bytes(usage.live_peak),
        Bytes(usage.reserved_peak),
        OUT_OF_MEMORY.load(Ordering::Relaxed),
        PASSED_ON.load(Ordering::Relaxed),
        REFUSED.load(Ordering::Relaxed),
    );
    if !Account::is_empty() {
        let _ = write!(text, "\n  beside the heap, by all of the process: {Account}");
    }
    if live > 0 {
        match served.heap().leaks() {
            Ok(leaks) if served.heap().tracking() == Tracking::Backtraces => {
                let _ = write!(text, "\n{leaks}");
            }
            _ => text.push_str("\n  set GPUHEAP_TRACK to backtraces to see where they were made"),
        }
    }
    say(&text);
}
