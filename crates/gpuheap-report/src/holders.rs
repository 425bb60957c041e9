//! Finds holders: the sites and threads whose blocks are live at one moment.

use std::cmp::Reverse;

use gpuheap_trace::{Holder, MemoryKind, Op, ThreadInfo, Trace};
use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::calls::Calls;
use crate::ledger::{Block, Ledger};

/// Maximum number of stacks in a report.
const STACKS: usize = 20;

/// Returns the holders of blocks that are live at the end, most bytes first. The first list has the
/// sites of the program's own allocations. The second list has NVIDIA's libraries, each with the
/// site that called it.
pub(crate) fn left(trace: &Trace, ledger: &Ledger, end: u32) -> (Vec<Holder>, Vec<Holder>) {
    let library = |block: &Block| trace.library(trace.events()[block.from as usize].stack);
    let (of_libraries, own): (Vec<&Block>, Vec<&Block>) =
        ledger.live(end).partition(|block| library(block).is_some());
    let site = |site: u32| ledger.sites[site as usize].clone();
    let own = own.into_iter().map(|block| (block.site, block.bytes));
    let of_libraries = of_libraries
        .into_iter()
        .map(|block| ((library(block).unwrap_or_default(), block.site), block.bytes));
    let called = |(library, caller)| format!("{library} ← {}", site(caller));
    (Holder::sums(own, site), Holder::sums(of_libraries, called))
}

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
    // At the end of the recording, threads that ended after the last event count as ended too.
    let time_ns = match trace.events().get(events as usize) {
        Some(_) => trace.events()[..events as usize].last().map_or(0, |event| event.time_ns),
        None => u64::MAX,
    };
    Holder::sums(blocks, |thread| thread_name(trace, thread, time_ns))
}

/// Returns the kinds of the memory that is live after the first `events` events, most bytes first.
/// Empty if the recording has no kinds.
pub(crate) fn by_kind(trace: &Trace, ledger: &Ledger, events: u32) -> Vec<Holder> {
    if trace.recording().is_none() {
        return Vec::new();
    }
    let blocks = ledger.live(events).map(|block| (kind(trace, block), block.bytes));
    Holder::sums(blocks, |kind| kind.as_str().to_owned())
}

fn kind(trace: &Trace, block: &Block) -> MemoryKind {
    match trace.events()[block.from as usize].op {
        Op::Allocate { allocation, .. } => trace.kind(allocation),
        _ => MemoryKind::Device,
    }
}

/// Returns a name such as `thread 7 (loader)`. `thread` is an index of [`Trace::threads`]. Adds the
/// thread's start if its id was reused, and `ended` if it ended by `time_ns`.
pub(crate) fn thread_name(trace: &Trace, thread: u32, time_ns: u64) -> String {
    if let Some(info) = trace.thread_info(thread) {
        let name = match (info.is_main, &*info.name) {
            (true, _) => "main thread".to_owned(),
            (_, "") => format!("thread {}", info.id),
            (_, name) => format!("thread {} ({name})", info.id),
        };
        let name = match info.is_id_reused {
            true => format!("{name} from {:.3} s", info.started_ns as f64 / 1e9),
            false => name,
        };
        return if has_ended(info, time_ns) { name + ", ended" } else { name };
    }
    let ids = trace.threads().unwrap_or_default();
    format!("thread {}", ids.get(thread as usize).copied().unwrap_or_default())
}

/// Returns the ended threads whose blocks are live after the first `events` events, most bytes
/// first. `None` if the format does not record the ends of threads.
pub(crate) fn of_ended_threads(trace: &Trace, ledger: &Ledger, events: u32) -> Option<Vec<Holder>> {
    trace.recording()?;
    let mut has_pool = FxHashMap::default();
    // Memory of a pool does not count as left by a thread: the pool hands it out again.
    let mut is_left = |block: &Block| {
        let stack = trace.events()[block.from as usize].stack;
        !kind(trace, block).is_pooled()
            && !*has_pool.entry(stack).or_insert_with(|| trace.pool_of(stack).is_some())
    };
    let is_ended = |block: &&Block| {
        let info = trace.thread_info(block.thread);
        info.is_some_and(|info| has_ended(info, u64::MAX)) && is_left(block)
    };
    let blocks = ledger.live(events).filter(is_ended).map(|block| (block.thread, block.bytes));
    Some(Holder::sums(blocks, |thread| thread_name(trace, thread, u64::MAX)))
}

/// Returns `true` if a thread other than the main thread ended by `time_ns`.
fn has_ended(thread: &ThreadInfo, time_ns: u64) -> bool {
    !thread.is_main && thread.ended_ns.is_some_and(|ended| ended <= time_ns)
}

/// Live memory that one thread allocated with the same call stack.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
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
/// Blocks without a stack, and blocks of NVIDIA's libraries, are left out.
pub(crate) fn by_stack(
    trace: &Trace,
    ledger: &Ledger,
    calls: &Calls<'_>,
    events: u32,
) -> Vec<KeptStack> {
    let mut sums: FxHashMap<(u32, u32), (u64, u64)> = FxHashMap::default();
    let is_own =
        |block: &&Block| trace.library(trace.events()[block.from as usize].stack).is_none();
    for block in ledger.live(events).filter(is_own) {
        if let Some(call) = calls.of(block) {
            let (bytes, blocks) = sums.entry((call, block.thread)).or_default();
            *bytes = bytes.saturating_add(block.bytes);
            *blocks += 1;
        }
    }
    let mut kept: Vec<_> = sums.into_iter().collect();
    kept.sort_unstable_by_key(|&((call, thread), (bytes, _))| (Reverse(bytes), call, thread));
    kept.truncate(STACKS);
    kept.into_iter()
        .map(|((call, thread), (bytes, blocks))| KeptStack {
            bytes,
            blocks,
            thread: trace.threads().map(|_| thread_name(trace, thread, u64::MAX)),
            frames: calls.frames(call),
        })
        .collect()
}
