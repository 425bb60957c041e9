//! Moments of a trace that a report can describe.

use gpuheap_trace::{Summary, Trace};

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

/// Returns the number of events up to a moment.
///
/// # Errors
/// Returns an error if the trace has no event with the moment's number.
pub(crate) fn events_until(trace: &Trace, summary: &Summary, at: At) -> Result<u32, String> {
    let events = trace.events();
    Ok(match at {
        At::Peak => peak(trace, summary),
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

/// Returns the number of events up to the peak.
pub(crate) fn peak(trace: &Trace, summary: &Summary) -> u32 {
    match summary.peak_event {
        // The number of events fits in 32 bits, so an event's index does too.
        Some(index) => index as u32 + 1,
        None => trace.reconstructed_events() as u32,
    }
}

/// Returns the number of a trace's events.
pub(crate) fn end(trace: &Trace) -> u32 {
    trace.events().len() as u32
}
