//! Memory that the recorded allocator held before the recording.

use gpuheap_trace::Segment;

use crate::models::DriverEvent;

/// Returns the bytes held before the recording: the bytes held at its end, less all bytes taken in
/// it, plus all bytes given back.
pub(super) fn reserved_before(at_end: &[Segment], recorded: &[DriverEvent]) -> u64 {
    let held: i128 = at_end.iter().map(|segment| i128::from(segment.bytes)).sum();
    let signed = |event: &DriverEvent| {
        let bytes = i128::from(event.bytes);
        if event.is_taken { bytes } else { -bytes }
    };
    let gained: i128 = recorded.iter().map(signed).sum();
    u64::try_from((held - gained).max(0)).unwrap_or(u64::MAX)
}

/// Returns the segments held before the recording: all segments held at its end, without the ones
/// that it took. Returns none if a segment grows in place.
pub(super) fn segments_before(at_end: &[Segment], recorded: &[DriverEvent]) -> Vec<Segment> {
    let mut segments: Vec<Segment> =
        at_end.iter().copied().filter(|segment| !segment.is_expandable).collect();
    if at_end.len() != segments.len() {
        return Vec::new();
    }
    let taken: rustc_hash::FxHashSet<u64> =
        recorded.iter().filter(|event| event.is_taken).map(|event| event.address).collect();
    segments.retain(|segment| !taken.contains(&segment.address));
    segments
}
