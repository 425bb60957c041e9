//! Searches for Pareto-optimal settings of a framework's allocator: no other setting gives the
//! program both fewer reserved bytes and fewer driver calls.
//!
//! ```
//! use gpuheap_replay::Program;
//! use gpuheap_replay::tune::{Budget, Family, search};
//! use gpuheap_trace::{ReadOptions, read_bytes};
//!
//! let log = "Thread,Time,Action,Pointer,Size,Stream\n\
//!            7,10:00:00.000001,allocate,0x7f0000000000,30000000,0x0\n\
//!            7,10:00:00.000005,free,0x7f0000000000,30000000,0x0\n";
//! let traces = read_bytes("small.csv", log.as_bytes(), &ReadOptions::default())?;
//!
//! let found = search(&Program::from_trace(&traces[0]), Family::Torch, &Budget::new(16 << 30), |_, _| {});
//! assert_eq!(found[0].reserved_peak, 30 << 20);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod family;
mod grid;
mod trace;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

pub use self::family::Family;
pub use self::grid::Candidate;
pub use self::trace::TraceSearch;
use crate::Program;
pub use crate::budget::Budget;
use crate::cores::on_all_cores;
use crate::models::torch::{Settings, Torch};
use crate::models::{Model, SettingError, build};

/// Runs the program under settings of one framework, on all cores. Returns the Pareto-optimal
/// settings: no other setting has both fewer reserved bytes and fewer driver calls. Fewest bytes
/// come first.
///
/// Of settings with equal figures, the plainer setting is returned. Settings under which a request
/// fails are left out. If all settings fail, the setting that serves the program longest is
/// returned.
///
/// A freed block becomes usable again at the same step as in the recording. `progress` is called
/// from several threads with the number of settings tried so far, and the number of all settings.
/// Both are equal at the end, unless the time ran out. Blocks until the search is complete.
pub fn search(
    program: &Program,
    family: Family,
    budget: &Budget,
    progress: impl Fn(usize, usize) + Sync,
) -> Vec<Candidate> {
    let end = Instant::now().checked_add(budget.time);
    let in_time = || end.is_none_or(|end| Instant::now() < end);
    let mut trials = grid::list_settings(program, family, budget);
    trials.truncate((budget.steps / program.len().max(1)).max(1));
    let (total, done) = (trials.len(), AtomicUsize::new(0));
    let tried = on_all_cores(trials.into_iter().enumerate(), |(index, trial)| {
        if index > 0 && !in_time() {
            return None;
        }
        // Leaves out settings with a size beyond the device's memory.
        let result = run(program, trial, budget).ok();
        progress(done.fetch_add(1, Ordering::Relaxed) + 1, total);
        result
    });
    front(tried.into_iter().flatten().collect())
}

/// Candidate, with the event at which it failed.
struct Tried {
    candidate: Candidate,
    failed_at: Option<u32>,
}

fn run(program: &Program, trial: Candidate, budget: &Budget) -> Result<Tried, SettingError> {
    let outcome = program.run(&mut *build_on(&trial.model, budget)?);
    Ok(Tried {
        candidate: Candidate {
            reserved_peak: outcome.figures.peak_reserved,
            driver_calls: outcome.figures.driver_calls,
            fails: outcome.failure.is_some(),
            ..trial
        },
        failed_at: outcome.failure.map(|failure| failure.event),
    })
}

/// Makes the model of an allocator on the budget's device. PyTorch's model also needs the device's
/// total memory, because the memory fraction is relative to it.
fn build_on(text: &str, budget: &Budget) -> Result<Box<dyn Model + Send>, SettingError> {
    let Some(settings) = text.strip_prefix("torch") else {
        return build(text, budget.usable_memory);
    };
    let settings: Settings = settings.trim_start_matches(':').parse()?;
    let mut torch = Torch::new(settings, budget.device_memory);
    torch.set_capacity(budget.usable_memory);
    Ok(Box::new(torch))
}

/// Returns the Pareto-optimal candidates. If all candidates fail, returns the candidate that failed
/// last.
fn front(tried: Vec<Tried>) -> Vec<Candidate> {
    if tried.iter().all(|tried| tried.candidate.fails) {
        let furthest = tried.into_iter().rev().max_by_key(|tried| tried.failed_at);
        return furthest.map(|tried| tried.candidate).into_iter().collect();
    }
    let passing = tried.into_iter().map(|tried| tried.candidate).filter(|one| !one.fails);
    let mut candidates: Vec<Candidate> = passing.collect();
    // The sort is stable. Of equal candidates, the plainest was tried first, and stays first.
    candidates.sort_by_key(|one| (one.reserved_peak, one.driver_calls));
    let mut fewest_calls = u64::MAX;
    candidates.retain(|one| {
        let is_better = one.driver_calls < fewest_calls;
        fewest_calls = fewest_calls.min(one.driver_calls);
        is_better
    });
    candidates
}
