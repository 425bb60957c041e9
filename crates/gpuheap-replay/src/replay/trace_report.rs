//! Results of the replays of one trace.

use gpuheap_trace::{Format, Summary};

use super::{DeviceUsed, PoolReport};
use crate::Gap;
use crate::verdict::{Recorded, Verdict};

/// Result of the replays of one trace.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct TraceReport {
    /// Name of the file.
    pub name: String,
    /// Format of the file.
    pub format: Format,
    /// Index of the recorded device, as the recorded program counts devices.
    pub recorded_on: Option<u32>,
    /// Counts and peaks of the trace.
    pub summary: Summary,
    /// The device of the replays.
    pub device: DeviceUsed,
    /// Bytes that a pool may take from the driver; `None` if no limit was asked for.
    pub limit: Option<u64>,
    /// The limit as the user wrote it.
    pub limit_typed: Option<String>,
    /// Facts that the recording has of its own allocator.
    pub recorded: Recorded,
    /// `true` if the file is cut off. The figures are those of the part that is there.
    pub is_cut_off: bool,
    /// Gaps of the recording.
    pub gaps: Vec<Gap>,
    /// Results, one for each pool.
    pub pools: Vec<PoolReport>,
    /// Conclusions from the results.
    pub verdict: Verdict,
}
