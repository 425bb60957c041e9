//! Choices of a replay.

use std::time::Duration;

use gpuheap::Size;

use super::{DeviceChoice, Pool};
use crate::verdict::Recorded;

/// Options of a replay.
#[derive(Debug, Clone)]
pub struct Options {
    /// Pools to replay through; if empty, those that suit the trace's format.
    pub pools: Vec<Pool>,
    /// The pool that decides whether the trace gets through. If `None`, the pools that were named
    /// decide, or else the allocator that recorded the trace.
    pub check: Option<Pool>,
    /// The device.
    pub device: DeviceChoice,
    /// Bytes that a pool may take from the driver.
    pub limit: Option<Size>,
    /// The limit as the user wrote it.
    pub limit_typed: Option<String>,
    /// Freed bytes that gpuheap's pool `driver` keeps.
    pub release_threshold: Option<Size>,
    /// Delay of an emulated device's streams behind the host.
    pub delay: Option<Duration>,
    /// `true` to search the smallest device for each pool.
    pub find_minimum: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            pools: Vec::new(),
            check: None,
            device: DeviceChoice::Default,
            limit: None,
            limit_typed: None,
            release_threshold: None,
            delay: None,
            find_minimum: false,
        }
    }
}

impl Options {
    /// Returns `true` if the memory of the run is known: from the user, or from the recorded
    /// failure.
    pub(crate) fn knows_memory(&self, recorded: &Recorded) -> bool {
        self.device.is_given() || self.limit.is_some() || recorded.limit.is_some()
    }
}
