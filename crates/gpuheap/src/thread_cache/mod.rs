//! Thread caches: what every thread keeps of what it freed, for its next requests on the same stream.
//!
//! ```text
//! thread 1 ─ looked up by heap and stream ─► ThreadCache                  thread 2, short of memory
//!                                              gate ◄────── stops ─────────── │
//! Block ─── comes back to ───────────────────► slots ────── takes out ──────► │
//!                                              counts ───── carries over ───► stats
//! thread 3 ─ frees it, and its own is full ──► remote_frees
//! ```
//!
//! A request that a cache serves takes no lock, makes no exchange with other threads and calls no
//! driver, and so does a free that a cache keeps. A free goes to the cache of the thread that frees,
//! whichever allocated; what does not fit goes to the [`remote_frees`] of the cache that it came through, or
//! else to the pool, half a bin at a time. For that the thread goes past the [lock](crate::sync::Biased) of its store
//! where it keeps taking it, and past the count of references of its heap ([`Owner`](crate::sync::Owner)).
//!
//! Before a policy takes more from the driver, what the thread keeps goes back to it, and what the
//! others keep where that is much; before a request fails, all of it. The same happens before figures
//! are read: what a thread keeps counts as cached.
//!
//! What a thread keeps is let go of when it ends, when its stream ends, and when the heap ends.
//!
//! | on the host of an H200, ns a pair of 1 KiB | |
//! |---|---|
//! | no thread caches: one lock and the policy | 200 |
//! | places exchanged one by one, caches counted by reference | 57 |
//! | gates, caches that are never destroyed | 27 to 31 |
//!
//! A free on another thread than the allocation takes 43 ns there, and took 187 without the remote frees.

mod cache;
mod counts;
mod ends;
mod local;
mod remote_frees;
mod slots;

pub(crate) use cache::{CacheOwner, Opening, Owning, ThreadCache};
#[cfg(test)]
pub(crate) use ends::lock_free;
pub(crate) use ends::{free, unused};
pub(crate) use local::{find, insert, is_there, unused as unused_here};
pub(crate) use slots::Kept;

/// Notes that the work is completed before all that this thread keeps of the streams of a context, by
/// number, or of one of them.
pub(crate) fn completed(context: u64, stream_id: Option<u64>) {
    local::each(|cache| cache.note_completed(context, stream_id));
}

/// Notes that all that this thread keeps of a stream was freed before `moment`; the stream's work
/// before `completed` is completed.
pub(crate) fn marked(context: u64, stream_id: u64, moment: u64, completed: u64) {
    local::each(|cache| cache.note_moment(context, stream_id, moment, completed));
}
