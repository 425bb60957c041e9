//! Memory that a device held before its recording began, found by undoing the trace.

use rustc_hash::FxHashSet;

use super::at_end::Block;
use super::entry::{Action, Entry};

/// The blocks that held memory before the first entry, pending ones first, then by address.
///
/// What the trace first says of an address tells what was there before: an allocation means
/// nothing, a `free_requested` a live block, a `free_completed` a pending one. Of an address that
/// the trace never mentions, the block at the end was there from the beginning.
pub(super) fn blocks_before<'e>(
    entries: impl Iterator<Item = &'e Entry>,
    at_end: impl Iterator<Item = Block>,
) -> Vec<Block> {
    let mut first_seen = FxHashSet::default();
    let mut before = Vec::new();
    for entry in entries {
        let pending = match entry.action {
            Action::Alloc => None,
            Action::FreeRequested => Some(false),
            Action::FreeCompleted => Some(true),
            _ => continue,
        };
        if !first_seen.insert(entry.address) {
            continue;
        }
        if let Some(pending) = pending {
            // The entry's stack is that of the free: who allocated the block is not known.
            let &Entry { address, bytes, stream, .. } = entry;
            before.push(Block { address, bytes, stream, stack: 0, pending });
        }
    }
    before.extend(at_end.filter(|block| first_seen.insert(block.address)));
    before.sort_by_key(|block| (!block.pending, block.address));
    before
}
