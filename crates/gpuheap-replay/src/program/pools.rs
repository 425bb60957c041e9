//! Finds private pools of CUDA graphs and of `MemPool`, and the requests that belong to the pools.

use gpuheap_trace::{Op, Trace};

/// The common pool, for requests without a private pool.
const COMMON: (u64, u64) = (0, 0);

/// Private pools of a recording. Each segment that is held at the end of the recording names its
/// pool. Requests name their pools only in some recordings.
pub(super) struct PrivatePools {
    /// Ids of the pools, in ascending order. A pool's number is its index plus 1.
    pools: Vec<(u64, u64)>,
    /// Start, end and pool number of each segment, with the event that took it; sorted by start.
    segments: Vec<(u64, u64, u32, usize)>,
}

impl PrivatePools {
    pub(super) fn from_trace(trace: &Trace) -> Self {
        let of_pools = trace.segments_at_end().iter().filter(|segment| segment.pool != COMMON);
        let mut segments: Vec<_> = of_pools.collect();
        let of_requests = (0..trace.allocations()).filter_map(|allocation| trace.pool(allocation));
        let mut pools: Vec<_> = of_requests.filter(|&pool| pool != COMMON).collect();
        pools.extend(segments.iter().map(|segment| segment.pool));
        pools.sort_unstable();
        pools.dedup();
        segments.sort_unstable_by_key(|segment| segment.address);
        let mut found: Vec<_> = segments
            .into_iter()
            .map(|segment| {
                let number = number(&pools, segment.pool);
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
        Self { pools, segments: found }
    }

    /// Returns the number of an allocation's pool; 0 is the common pool.
    pub(super) fn number_of(&self, trace: &Trace, allocation: u32, event: usize) -> u32 {
        match trace.pool(allocation) {
            Some(COMMON) => return 0,
            Some(pool) => return number(&self.pools, pool),
            None => {}
        }
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

fn number(pools: &[(u64, u64)], pool: (u64, u64)) -> u32 {
    pools.partition_point(|&other| other < pool) as u32 + 1
}
