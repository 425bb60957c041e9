//! Thread caches: the blocks that each thread freed and keeps for its next requests on the same
//! stream.
//!
//! ```text
//! thread 1 ─ looked up by heap and stream ─► ThreadCache                  thread 2, short of memory
//!                                              word ◄────── closes ────────── │
//! Block ─── is freed into ───────────────────► slots ────── takes out ──────► │
//!                                              counts ───── merges ───────► stats
//! thread 3 ─ frees it, and its own is full ──► remote_frees
//! ```
//!
//! If a cache serves a request, the thread takes the cache's [word](crate::sync::Word) with one
//! atomic exchange, on a cache line that no other thread uses. It makes no driver call. The same
//! holds for a free if a cache keeps the block. The cache of the freeing thread takes the block,
//! whichever thread allocated it. If the block does not fit there, the [`remote_frees`] of the
//! cache that served the block take it. If they are full too, half a bin of blocks moves to the
//! pool.
//!
//! Before a policy takes more memory from the driver, this thread's caches are flushed to the
//! policy. Other threads' caches are flushed too if they hold much. Before a request fails, and
//! before figures are read, all caches are flushed, because their blocks count as cached.
//!
//! A cache is flushed when its thread ends, when its stream ends, and when the heap ends.
//!
//! | design | ns for an allocation and a free of 1 KiB, on the host of an H200 |
//! |---|---|
//! | no thread caches: one lock and the policy | 200 |
//! | an atomic exchange for each slot, caches with reference counts | 57 |
//! | a gate that other threads close by `membarrier`, caches that are never destroyed | 27 to 39 |
//! | the present design: one word, taken after the block's slot is found | 42 |
//!
//! The gate was faster, but it took 8 ms when the first device was opened, and ended the process if
//! the kernel refused `membarrier` later. On that host, a free on another thread than the
//! allocation takes 43 to 81 ns. Without the remote frees it took 187 ns.

mod cache;
mod counts;
mod ends;
mod local;
mod remote_frees;
mod slots;

pub(crate) use cache::{CacheOwner, Opening, ThreadCache};
#[cfg(all(test, feature = "emulator", not(loom)))]
pub(crate) use ends::lock_free;
pub(crate) use ends::{free, unused};
pub(crate) use local::{find, insert, is_available, unused as unused_here};
pub(crate) use slots::CachedBlock;

/// Notes that all work before the frees in this thread's caches has completed. Concerns all caches
/// of the context `context` or, if `stream_id` is given, only the cache of that stream.
pub(crate) fn note_completed(context: u64, stream_id: Option<u64>) {
    local::each(|cache| cache.note_completed(context, stream_id));
}

/// Records `moment` in this thread's cache for a stream. A moment is a count of the context's waits
/// and events. All blocks in the cache were freed before `moment`. The stream has completed all
/// work from before `completed`, an earlier moment.
pub(crate) fn note_moment(context: u64, stream_id: u64, moment: u64, completed: u64) {
    local::each(|cache| cache.note_moment(context, stream_id, moment, completed));
}
