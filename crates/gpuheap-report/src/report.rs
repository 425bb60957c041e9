//! Report of a trace: its peak, memory that is left, growth and temporary allocations.

use gpuheap_trace::{Format, Recording, Summary, Trace};

use crate::growth::{self, Growth};
use crate::holders::{self, Holder};
use crate::ledger::{Ledger, SiteKind};
use crate::temporary::{self, Temporary};

/// Moment of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum At {
    /// The peak of live bytes.
    Peak,
    /// The end of the recording.
    End,
    /// After the event with this number.
    Event(u64),
}

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
    /// Counts and peaks.
    pub summary: Summary,
    /// Kind of the sites.
    pub kind: SiteKind,
    /// The moment that [`held`](Self::held) describes.
    pub at: At,
    /// Number of the last event before that moment.
    pub event: u64,
    /// Number of the file's last event.
    pub last_event: u64,
    /// Nanoseconds from the first event to that moment.
    pub time_ns: u64,
    /// Sites of the blocks that are live at that moment, most bytes first.
    pub held: Vec<Holder>,
    /// Threads of these blocks, most bytes first. Empty if the recording has no threads.
    pub held_by_thread: Vec<Holder>,
    /// Sites of the blocks that are live at the end, most bytes first.
    pub left: Vec<Holder>,
    /// Threads of these blocks, most bytes first. Empty if the recording has no threads.
    pub left_by_thread: Vec<Holder>,
    /// Memory that ended threads left live at the end. `None` if the format does not record the
    /// ends of threads.
    pub left_by_ended_threads: Option<Holder>,
    /// The program and the driver's figure; `None` if the format does not record them.
    pub recording: Option<Recording>,
    /// Sites that grew, steady ones first.
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
        let ledger = Ledger::new(trace);
        let last = trace.events()[..events as usize].last();
        Ok(Self {
            name: trace.name().to_owned(),
            format: trace.format(),
            device: trace.device(),
            kind: ledger.kind,
            at,
            event: last.map_or(0, |event| event.number.into()),
            last_event: trace.events().last().map_or(0, |event| event.number.into()),
            time_ns: last.map_or(0, |event| event.time_ns),
            held: holders::by_site(&ledger, events),
            held_by_thread: holders::by_thread(trace, &ledger, events),
            left: holders::by_site(&ledger, end(trace)),
            left_by_thread: holders::by_thread(trace, &ledger, end(trace)),
            left_by_ended_threads: holders::of_ended_threads(trace, &ledger, end(trace)),
            recording: trace.recording().cloned(),
            growing: growth::growing(trace, &ledger),
            temporary: temporary::temporary(trace, &ledger),
            summary,
        })
    }

    /// Returns the live bytes at the report's moment.
    pub fn held_bytes(&self) -> u64 {
        self.held.iter().map(|holder| holder.bytes).fold(0, u64::saturating_add)
    }
}

/// Returns the number of events up to a moment.
///
/// # Errors
/// Returns an error if the trace has no event with the moment's number.
pub(crate) fn events_until(trace: &Trace, summary: &Summary, at: At) -> Result<u32, String> {
    let events = trace.events();
    Ok(match at {
        At::Peak => match summary.peak_event {
            // An event's index is below 32 bits, as the number of events is.
            Some(index) => index as u32 + 1,
            None => trace.reconstructed_events() as u32,
        },
        At::End => end(trace),
        At::Event(number) => {
            let last = events.last().map_or(0, |event| u64::from(event.number));
            if number > last {
                let name = trace.name();
                return Err(format!(
                    "{name}: there is no event {number}; give one from 0 to {last}"
                ));
            }
            events.partition_point(|event| u64::from(event.number) <= number) as u32
        }
    })
}

fn end(trace: &Trace) -> u32 {
    trace.events().len() as u32
}
