//! Synchronization of threads: a lock of one word, and a lock around a value that is made of it.
//! loom explores their interleavings.

mod lock;
mod shim;
mod thread;
mod word;

pub(crate) use lock::{Lock, Locked};
pub(crate) use shim::{AtomicBool, AtomicPtr, AtomicU64, Ordering, Owned};
pub(crate) use thread::this_thread;
pub(crate) use word::Word;
