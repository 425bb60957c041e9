//! Finds temporary allocations. Such a block is freed before its thread makes two more allocations.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use gpuheap_trace::{Op, Trace};
use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::calls::Calls;
use crate::ledger::{Ledger, NEVER};

/// Maximum number of allocations that a thread makes while its temporary block is live. It is 1,
/// because an operation may allocate its result while its work area is live.
const BETWEEN: u64 = 1;

/// Temporary allocations of a site.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Temporary {
    /// Name of the site.
    pub site: String,
    /// Caller of the site, if it has several callers; `None` for one caller, or without a stack.
    pub caller: Option<String>,
    /// Number of temporary allocations.
    pub allocations: u64,
    /// Sum of their bytes.
    pub bytes: u64,
    /// Bytes of the largest allocation.
    pub largest_bytes: u64,
}

#[derive(Default)]
struct Sum {
    allocations: u64,
    bytes: u64,
    largest: u64,
    /// Number of blocks that are live at the end.
    left: u64,
}

/// Returns the sites with temporary allocations, by caller, most allocations first. If at least as
/// many blocks of a caller were never freed, leaves the caller out, because a reused buffer would
/// not help there.
pub(crate) fn temporary(trace: &Trace, ledger: &Ledger, calls: &Calls<'_>) -> Vec<Temporary> {
    let mut allocated = vec![0_u64; trace.threads().map_or(1, <[u64]>::len)];
    let mut at: Vec<u64> = vec![0; ledger.blocks.len()];
    let mut sums: FxHashMap<(u32, Option<u32>), Sum> = FxHashMap::default();
    for block in &ledger.blocks {
        let sum = sums.entry((block.site, calls.of(block))).or_default();
        sum.left += u64::from(block.until == NEVER);
    }
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
                // `first` is zero for a block from before the recording.
                if first > 0 && allocated[block.thread as usize] - first <= BETWEEN {
                    let sum = sums.entry((block.site, calls.of(block))).or_default();
                    sum.allocations += 1;
                    sum.bytes = sum.bytes.saturating_add(block.bytes);
                    sum.largest = sum.largest.max(block.bytes);
                }
            }
            _ => {}
        }
    }
    for (folded, site) in trace.folded().iter().zip(&ledger.folded_sites) {
        let sum = sums.entry((*site, calls.of_stack(folded.stack))).or_default();
        sum.allocations = sum.allocations.saturating_add(folded.count);
        sum.bytes = sum.bytes.saturating_add(folded.bytes);
        sum.largest = sum.largest.max(folded.largest_bytes);
    }
    let mut callers: FxHashMap<u32, BTreeSet<Option<String>>> = FxHashMap::default();
    let mut merged: BTreeMap<(u32, Option<String>), Sum> = BTreeMap::new();
    for ((site, call), sum) in sums {
        let caller = call.and_then(|call| calls.frames(call).into_iter().nth(1));
        callers.entry(site).or_default().insert(caller.clone());
        let all = merged.entry((site, caller)).or_default();
        all.allocations = all.allocations.saturating_add(sum.allocations);
        all.bytes = all.bytes.saturating_add(sum.bytes);
        all.largest = all.largest.max(sum.largest);
        all.left += sum.left;
    }
    let mut found: Vec<Temporary> = merged
        .into_iter()
        .filter(|(_, sum)| sum.allocations > sum.left)
        .map(|((site, caller), Sum { allocations, bytes, largest, .. })| Temporary {
            caller: caller.filter(|_| callers[&site].len() > 1),
            site: ledger.sites[site as usize].clone(),
            allocations,
            bytes,
            largest_bytes: largest,
        })
        .collect();
    found.sort_by_key(|one| Reverse((one.allocations, one.bytes)));
    found
}
