//! The search for settings, as people read it.

use gpuheap_trace::{Format, Trace};

use super::device_words;
use super::words::{Amount, grouped, line, paragraph};
use crate::Program;
use crate::replay::{DeviceChoice, Progress};
use crate::tune::{Budget, Family, search};
use crate::verdict::Recorded;

/// Searches the settings of a framework's allocator, and renders those that nothing beats in bytes
/// and driver calls. Returns the text, and whether the program gets through under one of them.
///
/// Without a family it is that of the trace's format. Blocks for 20 seconds at most, and the time of
/// one run.
pub fn tune(
    trace: &Trace,
    family: Option<Family>,
    device: &DeviceChoice,
    progress: &dyn Progress,
) -> (String, bool) {
    let recorded = Recorded::of(trace);
    let used = device.resolve(&recorded);
    let family = family.unwrap_or(match trace.format() {
        Format::PytorchSnapshot => Family::Torch,
        _ => Family::Rmm,
    });
    let framework = match family {
        Family::Torch => "PyTorch",
        Family::Rmm => "RMM",
        Family::CuPy => "CuPy",
    };
    let mut budget = Budget::new(used.usable);
    budget.device_memory = used.total;
    if let DeviceChoice::Card(card) = device {
        budget.vmm = card.vmm;
    }
    progress.now(&format!("searching settings of {framework}"));
    let tried = std::sync::atomic::AtomicUsize::new(0);
    let found = search(&Program::of(trace), family, &budget, |done, all| {
        if tried.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0 {
            progress.expect(all as u64);
        }
        progress.advance(u64::from(done > 0));
    });
    let mut text = String::new();
    line(&mut text, format_args!("{} ({})", trace.name(), trace.format()));
    let tried = tried.into_inner() as u64;
    let words = device_words(&used, &recorded);
    paragraph(&mut text, &format!("{} settings of {framework} tried on {words}", grouped(tried)));
    text.push('\n');
    let gets_through = found.iter().any(|candidate| !candidate.fails);
    let result = match (gets_through, recorded.failed.is_empty()) {
        (true, true) => "Nothing beats these in bytes and driver calls:",
        (true, false) => {
            "Nothing beats these in bytes and driver calls (at least: a request failed when this \
             was recorded, and what would have followed is not known):"
        }
        (false, _) => "The program gets through under none of them. This one serves it longest:",
    };
    paragraph(&mut text, result);
    line(&mut text, format_args!("{:>14}  {:>12}  setting", "peak reserved", "driver calls"));
    for candidate in &found {
        let peak = Amount(candidate.reserved_peak).to_string();
        let calls = grouped(candidate.driver_calls);
        if candidate.setting.chars().count() > 48 {
            line(&mut text, format_args!("{peak:>14}  {calls:>12}"));
            line(&mut text, format_args!("  {}", candidate.setting));
        } else {
            line(&mut text, format_args!("{peak:>14}  {calls:>12}  {}", candidate.setting));
        }
    }
    if recorded.waits {
        paragraph(
            &mut text,
            "Blocks wait for other streams in this program. The figures are for the times that were \
             recorded; gpuheap replay --pool gives a range.",
        );
    }
    (text, gets_through)
}
