//! The private pools of graphs and of `MemPool` that requests belong to.

use gpuheap_trace::{Op, Trace};

/// The private pools that the segments at the end belong to.
pub(super) struct PrivatePools {
    /// Start, end, number of the pool, and the event that took the segment; by start.
    segments: Vec<(u64, u64, u32, usize)>,
}

impl PrivatePools {
    pub(super) fn of(trace: &Trace) -> Self {
        let of_pools = trace.segments_at_end().iter().filter(|segment| segment.pool != (0, 0));
        let mut segments: Vec<_> = of_pools.collect();
        let mut numbers: Vec<_> = segments.iter().map(|segment| segment.pool).collect();
        numbers.sort_unstable();
        numbers.dedup();
        segments.sort_unstable_by_key(|segment| segment.address);
        let mut found: Vec<_> = segments
            .into_iter()
            .map(|segment| {
                let number = numbers.partition_point(|&pool| pool < segment.pool) as u32 + 1;
                let end = segment.address.saturating_add(segment.bytes);
                (segment.address, end, number, 0)
            })
            .collect();
        if !found.is_empty() {
            for (index, event) in trace.events().iter().enumerate() {
                if let Op::SegmentTaken { address, .. } = event.op
                    && let Ok(at) = found.binary_search_by_key(&address, |&(start, ..)| start)
                {
                    found[at].3 = index;
                }
            }
        }
        Self { segments: found }
    }

    pub(super) fn of_allocation(&self, trace: &Trace, allocation: u32, event: usize) -> u32 {
        if self.segments.is_empty() {
            return 0;
        }
        let address = trace.addresses()[allocation as usize];
        let after = self.segments.partition_point(|&(start, ..)| start <= address);
        match self.segments[..after].last() {
            Some(&(_, end, pool, taken)) if address < end && taken <= event => pool,
            _ => 0,
        }
    }
}
