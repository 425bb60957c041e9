//! Counts and peaks of a trace.

use super::{Op, Trace};

/// Counts and peaks of a [`Trace`]. Bytes are sums of requested sizes, and saturate at `u64::MAX`.
///
/// `events` is `allocations + frees + unknown_frees + failures + retries`. `left_live` is
/// `live_before + allocations - frees - inferred_frees`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// Recorded allocations, frees, unknown frees, failures and retries. Reconstructed and inferred
    /// events, segments and completions do not count.
    pub events: u64,
    /// Recorded allocations, and the allocations counted in [`Trace::folded`].
    pub allocations: u64,
    /// Recorded frees of blocks of this trace, and the frees counted in [`Trace::folded`].
    pub frees: u64,
    /// Recorded frees of blocks that are not in this trace ([`Trace::unknown_frees`]).
    pub unknown_frees: u64,
    /// Frees that the file does not record ([`Trace::inferred_frees`]).
    pub inferred_frees: u64,
    /// Requests that failed.
    pub failures: u64,
    /// Requests that were refused, and succeeded when the framework tried again.
    pub retries: u64,
    /// Blocks that were never freed.
    pub left_live: u64,
    /// Bytes of the blocks that were never freed.
    pub left_live_bytes: u64,
    /// Freed blocks whose pending state did not end; zero if the format does not record
    /// completions.
    pub left_pending: u64,
    /// Bytes of the blocks left pending.
    pub left_pending_bytes: u64,
    /// Number of streams.
    pub streams: usize,
    /// Number of threads; `None` if the format does not record threads.
    pub threads: Option<usize>,
    /// Peak of live bytes since the recording began, including blocks from before the recording.
    pub peak_live_bytes: u64,
    /// First event at the peak, as an index into [`Trace::events`]. `None` if live bytes never
    /// exceeded the bytes that were live when the recording began.
    pub peak_event: Option<usize>,
    /// Blocks that were live when the recording began.
    pub live_before: u64,
    /// Bytes of the blocks that were live when the recording began.
    pub live_before_bytes: u64,
    /// Nanoseconds from the first event to the last.
    pub duration_ns: u64,
}

impl Summary {
    pub(super) fn compute(trace: &Trace) -> Self {
        let mut tally = Tally::new(trace);
        for (index, event) in trace.events.iter().enumerate() {
            if index == trace.recorded_from {
                tally.begin_recording();
            }
            tally.count(index, event.op);
        }
        if trace.recorded_from == trace.events.len() {
            tally.begin_recording();
        }
        let mut summary = tally.summary;
        summary.left_live = tally.live_blocks;
        summary.left_live_bytes = clamp(tally.live_bytes);
        summary.left_pending_bytes = clamp(tally.pending_bytes);
        summary.peak_live_bytes = clamp(tally.peak_bytes);
        summary.frees = summary.frees.saturating_sub(trace.inferred_frees);
        for folded in &trace.folded {
            summary.allocations = summary.allocations.saturating_add(folded.count);
            summary.frees = summary.frees.saturating_add(folded.count);
        }
        let Summary { allocations, frees, unknown_frees, failures, retries, .. } = summary;
        let counts = [frees, unknown_frees, failures, retries];
        summary.events = counts.into_iter().fold(allocations, u64::saturating_add);
        summary
    }
}

/// State of the pass over the events. Sums of bytes are `u128`. No file has enough rows to overflow
/// a `u128`.
struct Tally {
    summary: Summary,
    bytes: Vec<u64>,
    records_completion: bool,
    live_blocks: u64,
    live_bytes: u128,
    pending_bytes: u128,
    peak_bytes: u128,
}

impl Tally {
    fn new(trace: &Trace) -> Self {
        Self {
            summary: Summary {
                unknown_frees: trace.unknown_frees,
                inferred_frees: trace.inferred_frees,
                streams: trace.streams.len(),
                threads: trace.threads.as_ref().map(Vec::len),
                duration_ns: trace.events.last().map_or(0, |event| event.time_ns),
                ..Summary::default()
            },
            bytes: vec![0; trace.addresses.len()],
            records_completion: trace.format.records_completion(),
            live_blocks: 0,
            live_bytes: 0,
            pending_bytes: 0,
            peak_bytes: 0,
        }
    }

    /// Begins the recording: all events that were counted until now happened before it.
    fn begin_recording(&mut self) {
        self.summary.allocations = 0;
        self.summary.frees = 0;
        self.summary.live_before = self.live_blocks;
        self.summary.live_before_bytes = clamp(self.live_bytes);
        self.summary.peak_event = None;
        self.peak_bytes = self.live_bytes;
    }

    fn count(&mut self, index: usize, op: Op) {
        match op {
            Op::Allocate { allocation, bytes } => {
                self.summary.allocations += 1;
                self.bytes[allocation as usize] = bytes;
                self.live_blocks += 1;
                self.live_bytes += u128::from(bytes);
                if self.live_bytes > self.peak_bytes {
                    self.peak_bytes = self.live_bytes;
                    self.summary.peak_event = Some(index);
                }
            }
            Op::Free { allocation } => {
                let bytes = u128::from(self.bytes[allocation as usize]);
                self.summary.frees += 1;
                self.live_blocks -= 1;
                self.live_bytes -= bytes;
                if self.records_completion {
                    self.summary.left_pending += 1;
                    self.pending_bytes += bytes;
                }
            }
            Op::FreeCompleted { allocation } => {
                self.summary.left_pending -= 1;
                self.pending_bytes -= u128::from(self.bytes[allocation as usize]);
            }
            Op::Fail { .. } => self.summary.failures += 1,
            Op::Retry { .. } => self.summary.retries += 1,
            Op::SegmentTaken { .. } | Op::SegmentGivenBack { .. } => {}
        }
    }
}

fn clamp(bytes: u128) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}
