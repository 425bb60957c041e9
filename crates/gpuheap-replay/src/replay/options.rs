//! Choices of a replay, and its progress.

use std::time::Duration;

use gpuheap::Size;

use super::{DeviceChoice, Pool};
use crate::recorded::Recorded;

/// Options of a replay.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Pools to replay through. If empty, the replay uses pools that suit the trace's format.
    pub pools: Vec<Pool>,
    /// The pool whose replay decides whether the program fits. If `None`, all replays through
    /// `pools` decide. If `pools` is empty as well, the allocator that recorded the trace decides.
    pub check: Option<Pool>,
    /// The device.
    pub device: DeviceChoice,
    /// Bytes that a pool may take from the driver.
    pub limit: Option<Size>,
    /// The limit as the user wrote it.
    pub limit_typed: Option<String>,
    /// Freed bytes that gpuheap's pool `driver` keeps.
    pub release_threshold: Option<Size>,
    /// Time by which streams of an emulated device lag the host.
    pub delay: Option<Duration>,
    /// `true` to find, for each pool, the smallest device on which memory does not run out.
    pub find_minimum: bool,
}

impl Options {
    /// Returns the user's limit. If the user gave no limit and no device, returns the limit of the
    /// recorded run.
    pub(crate) fn limit_for(&self, recorded: &Recorded) -> Option<Size> {
        let of_run = recorded.run_limit().filter(|_| !self.device.is_given());
        self.limit.or(of_run.map(Size::Bytes))
    }

    /// Returns `true` if the user or the recording states how much memory the run had.
    pub(crate) fn knows_memory(&self, recorded: &Recorded) -> bool {
        self.device.is_given()
            || self.limit.is_some()
            || recorded.limit.is_some()
            || recorded.device.is_some()
    }
}

/// Receiver of progress. It is called from several threads.
pub trait Progress: Sync {
    /// Names the step that begins now.
    fn now(&self, step: &str);
    /// Adds to the number of steps that are expected.
    fn expect(&self, steps: u64);
    /// Reports steps as done.
    fn advance(&self, steps: u64);
}

/// Progress that is not shown.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Progress for Silent {
    fn now(&self, _step: &str) {}
    fn expect(&self, _steps: u64) {}
    fn advance(&self, _steps: u64) {}
}
