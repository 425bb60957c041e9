//! Reports a trace's peak, memory that is live at its end, growth and temporary allocations.

use gpuheap_trace::{Format, Holder, Recording, Summary, Trace, hint};

use crate::calls::Calls;
use crate::copies::{self, CopySite};
use crate::growth::{self, Growth};
use crate::holders::{self, KeptStack};
use crate::ledger::{Ledger, SiteKind};
use crate::moment::{At, end, events_until, peak};
use crate::pools::Pools;
use crate::ranges::{self, RangeMemory};
use crate::stacks::is_host;
use crate::temporary::{self, Temporary};

/// Report of one trace.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Report {
    /// Name of the file.
    pub name: String,
    /// Format of the file.
    pub format: Format,
    /// The device's index; `None` if the format does not record it.
    pub device: Option<u32>,
    /// `true` for pinned and registered host memory.
    pub is_host: bool,
    /// Counts and peaks.
    pub summary: Summary,
    /// Kind of the sites.
    pub kind: SiteKind,
    /// The moment that [`held`](Self::held) describes.
    pub at: At,
    /// Number of the last event before the report's moment.
    pub event: u64,
    /// Number of the file's last event.
    pub last_event: u64,
    /// Nanoseconds from the first event to the report's moment.
    pub time_ns: u64,
    /// Sites of the blocks that are live at the report's moment, most bytes first.
    pub held: Vec<Holder>,
    /// Threads of the blocks in `held`, most bytes first. Empty if the recording has no threads.
    pub held_by_thread: Vec<Holder>,
    /// Kinds of the memory in `held`, most bytes first. Empty if the recording has no kinds.
    pub held_by_kind: Vec<Holder>,
    /// Frameworks' pools at the report's moment; `None` if the recording has no blocks of pools.
    pub pools: Option<Pools>,
    /// Frameworks whose pools took memory, but whose blocks were not recorded.
    pub unrecorded_pools: Vec<&'static str>,
    /// Sites of the blocks that are live at the end, most bytes first. Blocks of NVIDIA's libraries
    /// are left out.
    pub left: Vec<Holder>,
    /// NVIDIA's libraries with blocks that are live at the end, each with the line that called it.
    pub left_by_library: Vec<Holder>,
    /// Threads of all blocks that are live at the end, most bytes first. Empty if the recording has
    /// no threads.
    pub left_by_thread: Vec<Holder>,
    /// Stacks and threads that allocated the blocks in [`left`](Self::left), most bytes first. Has
    /// at most 20 entries.
    pub left_by_stack: Vec<KeptStack>,
    /// Threads that ended before their process and left memory live at the end, most bytes first.
    /// `None` if the format does not record the ends of threads.
    pub left_by_ended_threads: Option<Vec<Holder>>,
    /// The recorded program, and the driver's count of used bytes; `None` if not recorded.
    pub recording: Option<Recording>,
    /// Memory of the ranges that the program named, highest peak first.
    pub ranges: Vec<RangeMemory>,
    /// Memory copies of the process, by site, most bytes first. Empty if they were not recorded.
    pub copies: Vec<CopySite>,
    /// Sites that grew, steady sites first.
    pub growing: Vec<Growth>,
    /// Sites with temporary allocations, most allocations first.
    pub temporary: Vec<Temporary>,
}

impl Report {
    /// Makes the report of a trace, with the holders at one moment.
    ///
    /// # Errors
    /// Returns an error if the trace has no event with the moment's number. The error names the
    /// last event.
    pub fn new(trace: &Trace, at: At) -> Result<Self, String> {
        let summary = trace.summary();
        let events = events_until(trace, &summary, at)?;
        Ok(Self::after(trace, summary, at, events))
    }

    /// Makes the report of a trace, with the holders at the peak.
    pub fn at_peak(trace: &Trace) -> Self {
        let summary = trace.summary();
        let events = peak(trace, &summary);
        Self::after(trace, summary, At::Peak, events)
    }

    fn after(trace: &Trace, summary: Summary, at: At, events: u32) -> Self {
        let ledger = Ledger::new(trace);
        let calls = Calls::new(trace);
        let last = trace.events()[..events as usize].last();
        let unrecorded_pools = trace.unrecorded_pools();
        let has_blocks = unrecorded_pools.is_empty();
        let (left, left_by_library) = holders::left(trace, &ledger, end(trace));
        Self {
            name: trace.name().to_owned(),
            format: trace.format(),
            device: trace.device(),
            is_host: is_host(trace),
            kind: ledger.kind,
            at,
            event: last.map_or(0, |event| event.number.into()),
            last_event: trace.events().last().map_or(0, |event| event.number.into()),
            time_ns: last.map_or(0, |event| event.time_ns),
            held: holders::by_site(&ledger, events),
            held_by_thread: holders::by_thread(trace, &ledger, events),
            held_by_kind: holders::by_kind(trace, &ledger, events),
            pools: Pools::new(trace, &ledger, events),
            unrecorded_pools,
            left,
            left_by_library,
            left_by_thread: holders::by_thread(trace, &ledger, end(trace)),
            left_by_stack: holders::by_stack(trace, &ledger, &calls, end(trace)),
            left_by_ended_threads: holders::of_ended_threads(trace, &ledger, end(trace)),
            recording: trace.recording().cloned(),
            ranges: ranges::by_range(trace, &ledger),
            copies: copies::by_site(trace),
            growing: growth::growing(trace, &ledger, &calls, has_blocks),
            temporary: temporary::temporary(trace, &ledger, &calls),
            summary,
        }
    }

    /// Returns a note if the recording lacks blocks of frameworks' pools. The report then names
    /// lines at which a pool took segments, but other lines may hold the memory in the segments.
    pub fn note(&self) -> Option<String> {
        let pools = self.unrecorded_pools.join(" and ");
        let hints: Vec<&str> = self.unrecorded_pools.iter().filter_map(|pool| hint(pool)).collect();
        (!pools.is_empty()).then(|| {
            format!(
                "The recording has the segments that the pool of {pools} took from the driver, not \
                 the blocks in them. The lines below took segments; other lines may hold the \
                 memory. To see these, {}.",
                hints.join(", and ")
            )
        })
    }

    /// Returns the limit in bytes that `gpuheap run --limit` set for the device, if any.
    pub fn limit(&self) -> Option<u64> {
        self.recording.as_ref()?.device(self.device?)?.limit
    }

    /// Returns the live bytes at the report's moment.
    pub fn held_bytes(&self) -> u64 {
        self.held.iter().map(|holder| holder.bytes).fold(0, u64::saturating_add)
    }
}
