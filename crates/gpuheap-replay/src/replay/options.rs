//! Choices of a replay.

use std::time::Duration;

use gpuheap::Size;

use super::{DeviceChoice, Pool};
use crate::verdict::Recorded;

/// How traces are replayed.
#[derive(Debug, Clone)]
pub struct Options {
    /// The pools; if empty, those that fit the trace's format.
    pub pools: Vec<Pool>,
    /// The pool that decides whether the trace gets through; if `None`, the pools that were named,
    /// else the allocator that recorded the trace.
    pub check: Option<Pool>,
    /// The device.
    pub device: DeviceChoice,
    /// The most that a pool may take from the driver.
    pub limit: Option<Size>,
    /// The limit as the user wrote it.
    pub limit_typed: Option<String>,
    /// How much gpuheap's pool `driver` keeps of what is freed.
    pub release_threshold: Option<Size>,
    /// How far the streams of an emulated device are behind the host.
    pub delay: Option<Duration>,
    /// `true` if the smallest device is searched for each pool.
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
    /// Returns whether the memory of the run is known: from the user, or from the recording of its
    /// failure.
    pub(crate) fn knows_memory(&self, recorded: &Recorded) -> bool {
        self.device.is_given() || self.limit.is_some() || recorded.limit.is_some()
    }
}
