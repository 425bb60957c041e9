//! Holders: sites and threads, with the blocks of theirs that are live at one moment.

use std::cmp::Reverse;

use gpuheap_trace::{Frame, Holder, MemoryKind, Op, ThreadInfo, Trace};
use rustc_hash::FxHashMap;

use crate::ledger::{Block, Ledger};

/// Largest number of stacks of a report.
const STACKS: usize = 20;

/// Returns the sites of live blocks after the first `events` events, most bytes first.
pub(crate) fn by_site(ledger: &Ledger, events: u32) -> Vec<Holder> {
    let blocks = ledger.live(events).map(|block| (block.site, block.bytes));
    Holder::sums(blocks, |site| ledger.sites[site as usize].clone())
}

/// Returns the threads whose blocks are live after the first `events` events, most bytes first.
/// Empty if the recording has no threads.
pub(crate) fn by_thread(trace: &Trace, ledger: &Ledger, events: u32) -> Vec<Holder> {
    if trace.threads().is_none() {
        return Vec::new();
    }
    let blocks = ledger.live(events).map(|block| (block.thread, block.bytes));
    Holder::sums(blocks, |thread| thread_name(trace, thread))
}

/// Returns the kinds of the memory that is live after the first `events` events, most bytes first.
/// Empty if the recording has no kinds.
pub(crate) fn by_kind(trace: &Trace, ledger: &Ledger, events: u32) -> Vec<Holder> {
    if trace.recording().is_none() {
        return Vec::new();
    }
    let kind = |block: &Block| match trace.events()[block.from as usize].op {
        Op::Allocate { allocation, .. } => trace.kind(allocation),
        _ => MemoryKind::Device,
    };
    let blocks = ledger.live(events).map(|block| (kind(block), block.bytes));
    Holder::sums(blocks, |kind| kind.as_str().to_owned())
}

/// Returns the name of a thread, given its index in [`Trace::threads`]: its id, its name if it has
/// one, and whether it ended.
pub(crate) fn thread_name(trace: &Trace, thread: u32) -> String {
    if let Some(info) = trace.thread_info(thread) {
        let name = match (info.is_main, &*info.name) {
            (true, _) => "main thread".to_owned(),
            (_, "") => format!("thread {}", info.id),
            (_, name) => format!("thread {} ({name})", info.id),
        };
        return if has_ended(info) { name + ", ended" } else { name };
    }
    let ids = trace.threads().unwrap_or_default();
    format!("thread {}", ids.get(thread as usize).copied().unwrap_or_default())
}

/// Returns the ended threads whose blocks are live after the first `events` events, most bytes
/// first. `None` if the recording does not have the ends of threads.
pub(crate) fn of_ended_threads(trace: &Trace, ledger: &Ledger, events: u32) -> Option<Vec<Holder>> {
    trace.recording()?;
    let is_ended = |block: &&Block| trace.thread_info(block.thread).is_some_and(has_ended);
    let blocks = ledger.live(events).filter(is_ended).map(|block| (block.thread, block.bytes));
    Some(Holder::sums(blocks, |thread| thread_name(trace, thread)))
}

/// Returns `true` if a thread ended before its process.
fn has_ended(thread: &ThreadInfo) -> bool {
    !thread.is_main && thread.ended_ns.is_some()
}

/// A stack and a thread, with the memory that they keep.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeptStack {
    /// Live bytes, as requested.
    pub bytes: u64,
    /// Number of live blocks.
    pub blocks: u64,
    /// Name of the thread; `None` if the recording has no threads.
    pub thread: Option<String>,
    /// Frames in the program's own code, innermost first.
    pub frames: Vec<String>,
}

/// Returns the stacks of blocks that are live after the first `events` events, most bytes first.
/// Blocks without a stack are left out.
pub(crate) fn by_stack(trace: &Trace, ledger: &Ledger, events: u32) -> Vec<KeptStack> {
    // Stacks that differ in frames of libraries alone are one for a reader.
    let mut groups: FxHashMap<Vec<&Frame>, u32> = FxHashMap::default();
    let mut group_of: FxHashMap<u32, u32> = FxHashMap::default();
    let mut sums: FxHashMap<(u32, u32), (u64, u64)> = FxHashMap::default();
    for block in ledger.live(events) {
        let stack = trace.events()[block.from as usize].stack;
        if stack != 0 {
            let group = *group_of.entry(stack).or_insert_with(|| {
                // A trace has fewer stacks than 32 bits can count.
                let next = groups.len() as u32;
                *groups.entry(trace.own_frames(stack)).or_insert(next)
            });
            let (bytes, blocks) = sums.entry((group, block.thread)).or_default();
            *bytes = bytes.saturating_add(block.bytes);
            *blocks += 1;
        }
    }
    let mut kept: Vec<_> = sums.into_iter().collect();
    kept.sort_unstable_by_key(|&((group, thread), (bytes, _))| (Reverse(bytes), group, thread));
    kept.truncate(STACKS);
    let mut frames = vec![Vec::new(); groups.len()];
    for (group, number) in groups {
        frames[number as usize] = group;
    }
    kept.into_iter()
        .map(|((group, thread), (bytes, blocks))| KeptStack {
            bytes,
            blocks,
            thread: trace.threads().map(|_| thread_name(trace, thread)),
            frames: frames[group as usize].iter().map(ToString::to_string).collect(),
        })
        .collect()
}
