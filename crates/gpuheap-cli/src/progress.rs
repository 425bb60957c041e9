//! A progress bar on stderr, for what takes longer than a second.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

const PATIENCE: Duration = Duration::from_secs(1);

/// Counts steps towards an end, and shows them once the wait gets noticeable. Where stderr is not
/// a terminal nothing is ever shown. May be shared between threads.
pub(crate) struct Progress {
    bar: ProgressBar,
    start: Instant,
    shown: AtomicBool,
}

impl Progress {
    pub(crate) fn new(steps: u64) -> Progress {
        let bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::hidden());
        if let Ok(style) = ProgressStyle::with_template("{msg} [{bar:30}] {pos}/{len} {elapsed}") {
            bar.set_style(style.progress_chars("=> "));
        }
        Progress { bar, start: Instant::now(), shown: AtomicBool::new(false) }
    }

    /// What is being done now.
    pub(crate) fn now(&self, what: impl Into<String>) {
        self.bar.set_message(what.into());
    }

    /// More steps than thought.
    pub(crate) fn expect(&self, steps: u64) {
        self.bar.inc_length(steps);
    }

    /// Some steps are done.
    pub(crate) fn advance(&self, steps: u64) {
        if self.start.elapsed() > PATIENCE && !self.shown.swap(true, Ordering::Relaxed) {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        self.bar.inc(steps);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
