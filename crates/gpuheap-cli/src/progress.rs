//! Progress bar on stderr, for work of more than a second.

use std::io::{self, Read};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use gpuheap_replay::replay::{self, Progress as _};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Time until the bar is shown.
const PATIENCE: Duration = Duration::from_secs(1);

/// Counter of steps, shared between threads. Shows a bar after a second, if stderr is a terminal.
pub(crate) struct Progress {
    bar: ProgressBar,
    start: Instant,
    shown: AtomicBool,
}

impl Progress {
    /// Returns a counter of 0 expected steps.
    pub(crate) fn new() -> Progress {
        Progress::with("{msg} [{bar:30}] {pos}/{len} {elapsed}", 0)
    }

    /// Returns a counter of the bytes that are read from a file of `bytes` bytes.
    pub(crate) fn of_bytes(bytes: u64) -> Progress {
        Progress::with("{msg} [{bar:30}] {bytes}/{total_bytes} {elapsed}", bytes)
    }

    fn with(template: &str, steps: u64) -> Progress {
        let bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::hidden());
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        Progress { bar, start: Instant::now(), shown: AtomicBool::new(false) }
    }
}

impl replay::Progress for Progress {
    fn now(&self, step: &str) {
        self.bar.set_message(step.to_owned());
    }

    fn expect(&self, steps: u64) {
        self.bar.inc_length(steps);
    }

    fn advance(&self, steps: u64) {
        if self.start.elapsed() > PATIENCE && !self.shown.swap(true, Ordering::Relaxed) {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        self.bar.inc(steps);
    }
}

/// Reader whose bytes count as steps.
pub(crate) struct Counted<'a, R> {
    pub(crate) reader: R,
    pub(crate) progress: &'a Progress,
}

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.reader.read(buffer)?;
        self.progress.advance(count as u64);
        Ok(count)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
