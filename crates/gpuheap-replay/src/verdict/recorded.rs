//! Facts that a recording has of the allocator that made it.

use gpuheap_trace::{Event, Format, Op, Trace};

use crate::Program;
use crate::moment::{Moment, reserved_until};

/// Facts that a recording has of its own allocator. Sizes are bytes.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Recorded {
    /// Name of the allocator; `None` if the format does not say.
    pub allocator: Option<&'static str>,
    /// Its settings, as `PYTORCH_CUDA_ALLOC_CONF` holds them.
    pub settings: Option<String>,
    /// The most that it took from the driver; `None` if the recording does not say.
    pub peak_reserved: Option<u64>,
    /// Requests that failed.
    pub failed: Vec<FailedRequest>,
    /// Memory that the allocator could take; `None` if nothing failed, or it cannot be told.
    pub limit: Option<RecordedLimit>,
    /// Memory at the first request that failed.
    pub at_failure: Option<Moment>,
    /// `true` if blocks that were freed waited for other streams.
    pub waits: bool,
    is_expandable: bool,
}

/// A request that failed when it was recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct FailedRequest {
    /// The event's number in the file.
    pub event: u64,
    /// Bytes.
    pub bytes: u64,
    /// Free bytes of the device, by the driver; `None` if the recording does not say.
    pub device_free: Option<u64>,
}

/// Memory that the recorded allocator could take, as its failure tells it, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordedLimit {
    /// It could take so many.
    pub least: u64,
    /// It could not take so many.
    pub below: u64,
    /// `true` if the device had room, so that a limit of the allocator was in the way.
    pub is_own_limit: bool,
}

impl Recorded {
    pub(crate) fn of(trace: &Trace) -> Self {
        let program = Program::of(trace);
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
        Self {
            allocator: (trace.format() == Format::PytorchSnapshot).then_some("torch"),
            is_expandable: settings.as_ref().is_some_and(|settings| settings.expandable_segments()),
            settings: settings.map(|settings| settings.to_alloc_conf()),
            peak_reserved: reserved_until(trace, events.len()).map(|(most, _)| most),
            limit: first.and_then(|(index, request)| RecordedLimit::at(trace, index, request)),
            at_failure: first.map(|(index, _)| Moment::after(trace, &program, index)),
            waits: waits(trace),
            failed: failed.into_iter().map(|(_, request)| request).collect(),
        }
    }

    /// Returns whether segments grew in place when the trace was recorded.
    pub fn expandable_segments(&self) -> bool {
        self.is_expandable
    }
}

/// Returns whether a free of the trace was completed later than it was requested.
fn waits(trace: &Trace) -> bool {
    let is_late = |pair: &[Event]| {
        matches!(pair[0].op, Op::Free { .. }) && !matches!(pair[1].op, Op::FreeCompleted { .. })
    };
    trace.format().records_completion() && trace.events().windows(2).any(is_late)
}

impl RecordedLimit {
    fn at(trace: &Trace, index: usize, request: FailedRequest) -> Option<Self> {
        const GRANULE: u64 = 2 << 20;
        // PyTorch takes 20 MiB for requests between these two sizes.
        const MEDIUM: std::ops::Range<u64> = (1 << 20) + 1..10 << 20;
        let (most, now) = reserved_until(trace, index)?;
        let needed = match request.bytes {
            bytes if MEDIUM.contains(&bytes) => 20 << 20,
            bytes => bytes.checked_next_multiple_of(GRANULE)?,
        };
        let below = now.checked_add(needed)?;
        // A device without room: the rest of it could still be taken.
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
