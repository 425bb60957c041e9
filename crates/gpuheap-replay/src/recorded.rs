//! Facts that a recording contains about the allocator that made it.

use gpuheap_trace::{Event, Format, Op, Trace};

use crate::Program;
use crate::moment::{Moment, reserved_until};

/// Facts that a recording contains about the recorded allocator. Sizes are bytes.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Recorded {
    /// Name of the allocator; `None` if the format does not contain it.
    pub allocator: Option<&'static str>,
    /// Settings of the allocator, in the form of `PYTORCH_CUDA_ALLOC_CONF`.
    pub settings: Option<String>,
    /// Peak of bytes taken from the driver; `None` if the recording does not have it.
    pub peak_reserved: Option<u64>,
    /// Requests that failed.
    pub failed: Vec<FailedRequest>,
    /// Memory that the allocator could take; `None` if nothing failed, or if it cannot be derived.
    pub limit: Option<RecordedLimit>,
    /// Memory at the first request that failed.
    pub at_failure: Option<Moment>,
    /// `true` if freed blocks waited for other streams.
    pub waits: bool,
    is_expandable: bool,
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

/// Memory that the recorded allocator could take, derived from its failure, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordedLimit {
    /// Largest amount that the allocator certainly could take.
    pub least: u64,
    /// Smallest amount that the allocator certainly could not take.
    pub below: u64,
    /// `true` if the device had room. Then the reason of the failure was a limit of the allocator.
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
        Self {
            allocator: (trace.format() == Format::PytorchSnapshot).then_some("torch"),
            is_expandable: settings.as_ref().is_some_and(|settings| settings.expandable_segments()),
            settings: settings.map(|settings| settings.to_alloc_conf()),
            peak_reserved: reserved_until(trace, events.len()).map(|(most, _)| most),
            limit: first.and_then(|(index, request)| RecordedLimit::derive(trace, index, request)),
            at_failure: first.map(|(index, _)| Moment::after(trace, program, index)),
            waits: waits(trace),
            failed: failed.into_iter().map(|(_, request)| request).collect(),
        }
    }

    /// Returns `true` if segments grew in place in the recorded run.
    pub fn expandable_segments(&self) -> bool {
        self.is_expandable
    }
}

/// Returns `true` if some free of the trace was completed later than the program requested it.
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
        // The device was full. The allocator could still have taken its free bytes.
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
