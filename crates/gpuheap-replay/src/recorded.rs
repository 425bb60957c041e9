//! Facts about the recorded allocator, as the recording shows them.

use std::collections::BTreeMap;

use gpuheap_trace::{Event, Format, MemoryKind, Op, Trace, hint};

use crate::Program;
use crate::moment::{Moment, reserved_until};

/// Facts that a recording contains about the recorded allocator. Sizes are bytes.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Recorded {
    /// Allocator of the program, as `--pool` takes it; `None` if the recording does not show it.
    pub allocator: Option<&'static str>,
    /// `true` if RMM wrote the log, or if the capture has blocks or segments of RMM.
    pub is_rmm: bool,
    /// Frameworks of which the recording has the pools' segments, but not the blocks within them.
    pub segments_of: Vec<&'static str>,
    /// Device of the run; `None` if the format does not contain it.
    pub device: Option<RunDevice>,
    /// Settings of the allocator, in the form of `PYTORCH_CUDA_ALLOC_CONF`.
    pub settings: Option<String>,
    /// Peak of bytes taken from the driver; `None` if the recording does not have it.
    pub peak_reserved: Option<u64>,
    /// Requests that failed.
    pub failed: Vec<FailedRequest>,
    /// Memory that the allocator could take, derived from the first request that failed. `None` if
    /// no request failed, or if the recording lacks the figures.
    pub limit: Option<RecordedLimit>,
    /// Memory at the first request that failed.
    pub at_failure: Option<Moment>,
    /// `true` if freed blocks waited for other streams.
    pub waits: bool,
    is_expandable: bool,
}

/// Device of a recorded run. Sizes are bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunDevice {
    /// Name of the device.
    pub name: String,
    /// Memory of the device.
    pub total: u64,
    /// Memory that was in use before the first allocation.
    pub used_before: u64,
    /// Limit that `gpuheap run --limit` set; `None` if it set no limit.
    pub limit: Option<u64>,
}

/// Request that failed in the recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct FailedRequest {
    /// The event's number in the file.
    pub event: u64,
    /// Bytes, as requested.
    pub bytes: u64,
    /// Free bytes of the device, as the driver reported them; `None` if the recording has no
    /// figure.
    pub device_free: Option<u64>,
}

/// Memory in bytes that the recorded allocator could take. It is derived from a failed request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordedLimit {
    /// Bytes that the allocator could certainly take.
    pub least: u64,
    /// Sum that was too much: the bytes reserved at that time, and the failed request's segment.
    pub below: u64,
    /// `true` if the device had room, so that a limit of the allocator caused the failure.
    pub is_own_limit: bool,
}

impl Recorded {
    pub(crate) fn from_trace(trace: &Trace, program: &Program) -> Self {
        let settings = program.recorded_settings();
        let events = trace.events();
        let failed_at = |(index, event): (usize, &Event)| match event.op {
            Op::Fail { bytes } => Some((
                index,
                FailedRequest {
                    event: event.number.into(),
                    bytes,
                    device_free: trace.device_free(index),
                },
            )),
            _ => None,
        };
        let failed: Vec<_> = events.iter().enumerate().filter_map(failed_at).collect();
        let first = failed.first().copied();
        let segments_of = match trace.format() {
            Format::Capture => trace.unrecorded_pools(),
            _ => Vec::new(),
        };
        let is_rmm = trace.format() == Format::RmmCsv
            || segments_of.contains(&"RMM")
            || has_blocks_of_rmm(trace);
        Self {
            allocator: allocator(trace, is_rmm),
            is_rmm,
            segments_of,
            device: RunDevice::from_trace(trace),
            is_expandable: settings.as_ref().is_some_and(|settings| settings.expandable_segments()),
            settings: settings.map(|settings| settings.to_alloc_conf()),
            peak_reserved: reserved_until(trace, events.len()).map(|(most, _)| most),
            limit: first.and_then(|(index, request)| RecordedLimit::derive(trace, index, request)),
            at_failure: first.map(|(index, _)| Moment::after(trace, program, index)),
            waits: waits(trace),
            failed: failed.into_iter().map(|(_, request)| request).collect(),
        }
    }

    /// Returns the limit that `gpuheap run --limit` set, if any.
    pub fn run_limit(&self) -> Option<u64> {
        self.device.as_ref()?.limit
    }

    /// Returns the name of the program's allocator in words; `None` if it is not known.
    pub fn allocator_name(&self) -> Option<&'static str> {
        Some(match self.allocator? {
            "torch" => "PyTorch's pool",
            "cupy" => "CuPy's pool",
            "cuda:async" => "cudaMallocAsync",
            _ => "cudaMalloc",
        })
    }

    /// Returns one or two sentences on the allocator that the program used, and on the rows of the
    /// report that replay it. `None` if the trace is not a capture.
    pub(crate) fn used(&self) -> Option<String> {
        self.device.as_ref()?;
        let pools = self.segments_of.join(" and ");
        let hints: Vec<_> = self.segments_of.iter().filter_map(|pool| hint(pool)).collect();
        Some(match (self.allocator.zip(self.allocator_name()), pools.is_empty()) {
            (Some((row, name)), true) => format!("The program used {name}: row {row}."),
            (_, false) => format!(
                "The program used the pool of {pools}, and the rows replay its requests for \
                 segments, not for blocks. For rows of its blocks, {}.",
                hints.join(", and ")
            ),
            (None, true) if self.is_rmm => {
                "The program used RMM. The recording does not show its resource.".to_owned()
            }
            (None, true) => "The recording does not show the program's allocator.".to_owned(),
        })
    }

    /// Returns `true` if segments grew in place in the recorded run.
    pub fn expandable_segments(&self) -> bool {
        self.is_expandable
    }
}

/// Returns the allocator that served most bytes of a trace. Prefers frameworks' pools to the
/// driver. `None` if the trace does not show the allocator. RMM's traces do not name the resource.
/// Traces of gpuheap's heaps, recognised by a missing `used_before`, do not name the pool.
fn allocator(trace: &Trace, is_rmm: bool) -> Option<&'static str> {
    match trace.format() {
        Format::PytorchSnapshot => return Some("torch"),
        Format::Capture if !is_rmm => {}
        _ => return None,
    }
    let mut bytes_of = BTreeMap::new();
    for event in trace.events() {
        let Op::Allocate { allocation, bytes } = event.op else { continue };
        let allocator = match trace.kind(allocation) {
            MemoryKind::PyTorch => "torch",
            MemoryKind::CuPy => "cupy",
            MemoryKind::StreamOrdered | MemoryKind::Pool => "cuda:async",
            _ => "cuda",
        };
        *bytes_of.entry(allocator).or_insert(0_u128) += u128::from(bytes);
    }
    let most = bytes_of.into_iter().max_by_key(|(allocator, bytes)| (is_pool(allocator), *bytes));
    let (allocator, _) = most?;
    let device = trace.recording().zip(trace.device());
    let is_of_driver =
        device.and_then(|(recording, ordinal)| recording.device(ordinal)?.used_before).is_some();
    (is_of_driver || is_pool(allocator)).then_some(allocator)
}

fn has_blocks_of_rmm(trace: &Trace) -> bool {
    (0..trace.allocations()).any(|allocation| trace.kind(allocation) == MemoryKind::Rmm)
}

fn is_pool(allocator: &str) -> bool {
    !allocator.starts_with("cuda")
}

impl RunDevice {
    fn from_trace(trace: &Trace) -> Option<Self> {
        let device = trace.recording()?.device(trace.device()?)?;
        (device.bytes > 0).then(|| Self {
            name: device.name.to_string(),
            total: device.bytes,
            used_before: device.used_before.unwrap_or(0).min(device.bytes),
            limit: device.limit,
        })
    }
}

/// Returns `true` if the trace has a free that was not completed at once.
fn waits(trace: &Trace) -> bool {
    let is_late = |pair: &[Event]| {
        matches!(pair[0].op, Op::Free { .. }) && !matches!(pair[1].op, Op::FreeCompleted { .. })
    };
    trace.format().records_completion() && trace.events().windows(2).any(is_late)
}

impl RecordedLimit {
    fn derive(trace: &Trace, index: usize, request: FailedRequest) -> Option<Self> {
        const GRANULE: u64 = 2 << 20;
        // PyTorch takes 20 MiB for a request between these two sizes.
        const MEDIUM: std::ops::Range<u64> = (1 << 20) + 1..10 << 20;
        let (most, now) = reserved_until(trace, index)?;
        let needed = match request.bytes {
            bytes if MEDIUM.contains(&bytes) => 20 << 20,
            bytes => bytes.checked_next_multiple_of(GRANULE)?,
        };
        let below = now.checked_add(needed)?;
        // The device had less free memory than the request needed. Smaller requests could still
        // have taken that free memory.
        if let Some(free) = request.device_free
            && free < needed
        {
            let least = most.max(now.saturating_add(free));
            return Some(Self { least, below: below.max(least), is_own_limit: false });
        }
        let is_own_limit = request.device_free.is_some();
        Some(Self { least: most, below: below.max(most), is_own_limit })
    }
}
