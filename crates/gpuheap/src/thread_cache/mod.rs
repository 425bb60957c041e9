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
//! A request that a cache serves takes the cache's [word](crate::sync::Word) by one atomic
//! exchange, on a cache line that no other thread uses, and calls no driver. Neither does a free
//! that a cache keeps. The cache of the freeing thread takes the block, whichever thread allocated
//! it. If the block does not fit, the [`remote_frees`] of the cache that served it take it, or else
//! the pool, half a bin at a time.
//!
//! Before a policy takes more from the driver, this thread's caches are flushed to it, and other
//! threads' caches if they hold much. Before a request fails, and before figures are read, all are
//! flushed: cached blocks of threads count as cached.
//!
//! A cache is flushed when its thread ends, when its stream ends, and when the heap ends.
//!
//! | on the host of an H200, ns a pair of 1 KiB | |
//! |---|---|
//! | no thread caches: one lock and the policy | 200 |
//! | places exchanged one by one, caches counted by reference | 57 |
//! | gates with a barrier of the kernel, caches that are never destroyed | 27 to 39 |
//! | one word, the block's slot found before it is taken | 42 |
//!
//! A free on another thread than the allocation takes 43 to 81 ns there, and took 187 without the
//! remote frees.

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
pub(crate) use slots::KeptBlock;

/// Notes that all work before the frees in this thread's caches has completed, for the streams of a
/// context, by number, or for one of them.
pub(crate) fn note_completed(context: u64, stream_id: Option<u64>) {
    local::each(|cache| cache.note_completed(context, stream_id));
}

/// Notes that all blocks of a stream in this thread's cache were freed before `moment`, and that
/// the stream's work before `completed` has completed.
pub(crate) fn note_moment(context: u64, stream_id: u64, moment: u64, completed: u64) {
    local::each(|cache| cache.note_moment(context, stream_id, moment, completed));
}
