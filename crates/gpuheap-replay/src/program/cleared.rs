//! Finds calls of `torch.cuda.empty_cache()` in a recording.
//!
//! A recording does not contain these calls, but contains the segments that PyTorch gave back.
//! PyTorch gives segments back on its own only right before it takes memory from the driver. It
//! does so to stay below its limit, or after the driver refused.

use gpuheap_trace::{Op, Trace};

/// Segments that PyTorch gave back to the driver one after the other, with no event between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cleared {
    /// Index of the event that gave back the last segment.
    pub(super) last: usize,
    /// Bytes that the next event took, or failed to take. It is 0 if the next event is of another
    /// kind. Then PyTorch needed no memory, so the program called `empty_cache`.
    pub(super) then_taken: u64,
    /// `true` if the program certainly called `empty_cache`. Either PyTorch took no memory right
    /// after, or its peak shows that it could have taken that memory without giving segments back.
    pub(super) is_certain: bool,
}

/// Finds each unbroken series of events that give back segments. Returns them in recorded order.
pub(super) fn find(trace: &Trace, held_before: u64) -> Vec<Cleared> {
    let events = trace.events();
    let (mut held, mut peak) = (held_before, held_before);
    let mut found: Vec<(Cleared, u64)> = Vec::new();
    let mut held_at_start = None;
    for (index, event) in events.iter().enumerate() {
        match event.op {
            Op::SegmentTaken { bytes, .. } => {
                held = held.saturating_add(bytes);
                peak = peak.max(held);
            }
            Op::SegmentGivenBack { bytes, .. } => {
                let start = *held_at_start.get_or_insert(held);
                held = held.saturating_sub(bytes);
                let then_taken = match events.get(index + 1).map(|next| next.op) {
                    Some(Op::SegmentGivenBack { .. }) => continue,
                    Some(
                        Op::SegmentTaken { bytes, .. } | Op::Fail { bytes } | Op::Retry { bytes },
                    ) => bytes,
                    _ => 0,
                };
                found.push((Cleared { last: index, then_taken, is_certain: false }, start));
                held_at_start = None;
            }
            _ => {}
        }
    }
    let collects = trace.allocator_settings().is_some_and(|settings| {
        // With garbage collection, PyTorch also gives segments back while memory is not short, so
        // such segments do not prove a call of `empty_cache`.
        settings.garbage_collection_threshold > 0.0
    });
    let certain = |(mut cleared, start): (Cleared, u64)| {
        let had_room = start.saturating_add(cleared.then_taken) <= peak;
        cleared.is_certain = cleared.then_taken == 0 || (had_room && !collects);
        cleared
    };
    found.into_iter().map(certain).collect()
}
