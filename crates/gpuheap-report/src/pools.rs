//! Finds the memory that frameworks' pools hold at one moment, and the blocks in this memory.

use gpuheap_trace::{Holder, Taken, Trace};
use rustc_hash::FxHashMap;

use crate::ledger::Ledger;

/// Segments that frameworks' pools hold at one moment, and the blocks in them.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Pools {
    /// Segments of driver memory that the pools hold, largest first.
    pub segments: Vec<Segment>,
    /// Frameworks with their live blocks, most bytes first.
    pub frameworks: Vec<Holder>,
    /// Sites of memory that belongs to no framework, most bytes first.
    pub outside: Vec<Holder>,
}

/// Memory that the driver gave to a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Segment {
    /// Device address.
    pub address: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// Live bytes of blocks in the segment.
    pub used: u64,
    /// Number of live blocks in the segment.
    pub blocks: u64,
    /// Sites of these blocks, most bytes first.
    pub sites: Vec<Holder>,
}

impl Pools {
    /// Returns the pools after the first `events` events. `None` if the recording has no blocks of
    /// pools.
    pub(crate) fn new(trace: &Trace, ledger: &Ledger, events: u32) -> Option<Self> {
        if !(0..trace.allocations()).any(|allocation| trace.kind(allocation).is_pooled()) {
            return None;
        }
        let mut segments: Vec<Segment> = Taken::after(trace, events as usize)
            .unwrap_or_default()
            .ranges()
            .map(|(address, end, _)| Segment {
                address,
                bytes: end - address,
                used: 0,
                blocks: 0,
                sites: Vec::new(),
            })
            .collect();
        let (mut frameworks, mut outside) = (Vec::new(), Vec::new());
        let mut sites: FxHashMap<usize, Vec<(u32, u64)>> = FxHashMap::default();
        let live = (0_u32..).zip(&ledger.blocks).filter(|(_, block)| block.is_live(events));
        for (allocation, block) in live {
            let kind = trace.kind(allocation);
            if !kind.is_pooled() {
                outside.push((block.site, block.bytes));
                continue;
            }
            frameworks.push((kind, block.bytes));
            let start = trace.addresses()[allocation as usize];
            let end = start.saturating_add(block.bytes);
            let first = segments.partition_point(|segment| segment.end() <= start);
            for (index, segment) in segments.iter_mut().enumerate().skip(first) {
                if segment.address >= end {
                    break;
                }
                let bytes = end.min(segment.end()) - start.max(segment.address);
                segment.used += bytes;
                segment.blocks += 1;
                sites.entry(index).or_default().push((block.site, bytes));
            }
        }
        let site = |site: u32| ledger.sites[site as usize].clone();
        for (index, blocks) in sites {
            segments[index].sites = Holder::sums(blocks.into_iter(), site);
        }
        segments.sort_by_key(|segment| (std::cmp::Reverse(segment.bytes), segment.address));
        let frameworks = Holder::sums(frameworks.into_iter(), |kind| kind.as_str().to_owned());
        Some(Self { segments, frameworks, outside: Holder::sums(outside.into_iter(), site) })
    }

    /// Returns the bytes of all segments.
    pub fn segment_bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.bytes).fold(0, u64::saturating_add)
    }

    /// Returns the live bytes of blocks in all segments.
    pub fn used_bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.used).fold(0, u64::saturating_add)
    }

    /// Returns the live bytes that belong to no framework.
    pub fn outside_bytes(&self) -> u64 {
        self.outside.iter().map(|holder| holder.bytes).fold(0, u64::saturating_add)
    }
}

impl Segment {
    fn end(&self) -> u64 {
        self.address.saturating_add(self.bytes)
    }
}
