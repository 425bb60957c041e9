//! Derives the memory that a device held before its recording began.

use rustc_hash::FxHashSet;

use super::at_end::Block;
use super::entry::{Action, Entry};

/// Returns the blocks in use before the first entry: pending blocks, then live blocks, each sorted
/// by address.
///
/// The first entry with an address shows the state of that address before the recording. A
/// `free_requested` shows a live block, a `free_completed` shows a pending block, and an allocation
/// shows that no block was there. If no entry has the address of a block that exists at the end,
/// the block existed all the time.
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
            // The entry has the stack of the free. The stack of the allocation is not known.
            let &Entry { address, bytes, stream, .. } = entry;
            before.push(Block { address, bytes, stream, stack: 0, pending });
        }
    }
    before.extend(at_end.filter(|block| first_seen.insert(block.address)));
    before.sort_by_key(|block| (!block.pending, block.address));
    before
}
