//! Temporary allocations: freed before their thread allocated again more than once.

use gpuheap_trace::{Op, Trace};
use serde::Serialize;

use crate::ledger::Ledger;

/// Number of other allocations of its thread during which a temporary block may be live. An
/// operation with one work area allocates its result in between.
const BETWEEN: u64 = 1;

/// A site's allocations, and the temporary ones among them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Temporary {
    /// Name of the site.
    pub site: String,
    /// Number of temporary allocations.
    pub allocations: u64,
    /// Sum of their bytes.
    pub bytes: u64,
    /// Bytes of the largest one.
    pub largest: u64,
}

/// Returns the sites with temporary allocations, most allocations first.
pub(crate) fn temporary(trace: &Trace, ledger: &Ledger) -> Vec<Temporary> {
    let mut allocated = vec![0_u64; trace.threads().map_or(1, <[u64]>::len)];
    let mut at: Vec<u64> = vec![0; ledger.blocks.len()];
    let mut sums = vec![(0_u64, 0_u64, 0_u64); ledger.sites.len()];
    for event in &trace.events()[trace.reconstructed_events()..] {
        match event.op {
            Op::Allocate { allocation, .. } => {
                let allocated = &mut allocated[event.thread as usize];
                *allocated += 1;
                at[allocation as usize] = *allocated;
            }
            Op::Free { allocation } => {
                let block = &ledger.blocks[allocation as usize];
                let first = at[allocation as usize];
                // Zero for a block from before the recording.
                if first > 0 && allocated[block.thread as usize] - first <= BETWEEN {
                    let (count, bytes, largest) = &mut sums[block.site as usize];
                    *count += 1;
                    *bytes = bytes.saturating_add(block.bytes);
                    *largest = (*largest).max(block.bytes);
                }
            }
            _ => {}
        }
    }
    let mut found: Vec<Temporary> = sums
        .into_iter()
        .enumerate()
        .filter(|&(_, (count, ..))| count > 0)
        .map(|(site, (allocations, bytes, largest))| Temporary {
            site: ledger.sites[site].clone(),
            allocations,
            bytes,
            largest,
        })
        .collect();
    found.sort_by(|one, other| {
        (other.allocations, other.bytes, &one.site).cmp(&(one.allocations, one.bytes, &other.site))
    });
    found
}
