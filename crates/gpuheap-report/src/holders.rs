//! Holders: sites and threads, with the blocks of theirs that are live at one moment.

use gpuheap_trace::Trace;
use rustc_hash::FxHashMap;

use crate::ledger::{Block, Ledger};

/// Largest number of stacks of a report.
const STACKS: usize = 20;

/// A site or a thread, with its live memory at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// Name of the site or thread.
    pub name: String,
    /// Live bytes, as requested.
    pub bytes: u64,
    /// Number of live blocks.
    pub blocks: u64,
}

/// Returns the sites of live blocks after the first `events` events, most bytes first.
pub(crate) fn by_site(ledger: &Ledger, events: u32) -> Vec<Holder> {
    grouped(
        ledger.live(events),
        ledger.sites.len(),
        |block| block.site,
        |site| ledger.sites[site].clone(),
    )
}

/// Returns the threads whose blocks are live after the first `events` events, most bytes first.
/// Empty if the recording has no threads.
pub(crate) fn by_thread(trace: &Trace, ledger: &Ledger, events: u32) -> Vec<Holder> {
    let Some(threads) = trace.threads() else { return Vec::new() };
    grouped(
        ledger.live(events),
        threads.len(),
        |block| block.thread,
        |thread| thread_name(trace, thread),
    )
}

/// Returns the name of a thread, given its index in [`Trace::threads`]: its id, its name if it has
/// one, and whether it ended.
pub(crate) fn thread_name(trace: &Trace, thread: usize) -> String {
    // A thread's index is below 32 bits.
    if let Some(info) = trace.thread_info(thread as u32) {
        let name = match (info.is_main, &*info.name) {
            (true, _) => "main thread".to_owned(),
            (_, "") => format!("thread {}", info.id),
            (_, name) => format!("thread {} ({name})", info.id),
        };
        return if info.ended_ns.is_some() { name + ", ended" } else { name };
    }
    let id = trace.threads().and_then(|threads| threads.get(thread)).copied().unwrap_or_default();
    format!("thread {id}")
}

/// Returns the blocks that ended threads allocated and that are live after the first `events`
/// events. `None` if the recording does not have the ends of threads.
pub(crate) fn of_ended_threads(trace: &Trace, ledger: &Ledger, events: u32) -> Option<Holder> {
    trace.recording()?;
    let mut held = Holder { name: "ended threads".to_owned(), bytes: 0, blocks: 0 };
    for block in ledger.live(events) {
        if trace.thread_info(block.thread).is_some_and(|info| info.ended_ns.is_some()) {
            held.bytes = held.bytes.saturating_add(block.bytes);
            held.blocks += 1;
        }
    }
    Some(held)
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
    let mut sums: FxHashMap<(u32, u32), (u64, u64)> = FxHashMap::default();
    for block in ledger.live(events) {
        let stack = trace.events()[block.from as usize].stack;
        if stack != 0 {
            let (bytes, blocks) = sums.entry((stack, block.thread)).or_default();
            *bytes = bytes.saturating_add(block.bytes);
            *blocks += 1;
        }
    }
    // Stacks that differ in frames of libraries alone are one for a reader.
    let mut kept: FxHashMap<(Vec<String>, u32), (u64, u64)> = FxHashMap::default();
    for ((stack, thread), (bytes, blocks)) in sums {
        let frames = trace.own_frames(stack).into_iter().map(ToString::to_string).collect();
        let sum = kept.entry((frames, thread)).or_default();
        sum.0 = sum.0.saturating_add(bytes);
        sum.1 += blocks;
    }
    let mut stacks: Vec<KeptStack> = kept
        .into_iter()
        .map(|((frames, thread), (bytes, blocks))| KeptStack {
            bytes,
            blocks,
            thread: trace.threads().map(|_| thread_name(trace, thread as usize)),
            frames,
        })
        .collect();
    stacks.sort_by(|one, other| {
        other
            .bytes
            .cmp(&one.bytes)
            .then_with(|| (&one.thread, &one.frames).cmp(&(&other.thread, &other.frames)))
    });
    stacks.truncate(STACKS);
    stacks
}

fn grouped<'b>(
    blocks: impl Iterator<Item = &'b Block>,
    groups: usize,
    group: impl Fn(&Block) -> u32,
    name: impl Fn(usize) -> String,
) -> Vec<Holder> {
    let mut sums = vec![(0_u64, 0_u64); groups];
    for block in blocks {
        let (bytes, blocks) = &mut sums[group(block) as usize];
        *bytes = bytes.saturating_add(block.bytes);
        *blocks += 1;
    }
    let mut holders: Vec<Holder> = sums
        .into_iter()
        .enumerate()
        .filter(|&(_, (_, blocks))| blocks > 0)
        .map(|(group, (bytes, blocks))| Holder { name: name(group), bytes, blocks })
        .collect();
    holders.sort_by(|one, other| (other.bytes, &one.name).cmp(&(one.bytes, &other.name)));
    holders
}
