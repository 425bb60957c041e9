//! Synchronization of threads: a lock biased to one thread, gates that their owner passes at nearly
//! no cost, and the barrier that pays for that. loom explores their interleavings.

mod barrier;
mod gate;
mod lock;
mod owner;
mod shim;
mod thread;

pub(crate) use barrier::{heavy, prepare};
pub(crate) use gate::Gate;
pub(crate) use lock::{Biased, Locked, Seat};
pub(crate) use owner::Owner;
pub(crate) use shim::{AtomicBool, AtomicPtr, AtomicU64, Ordering, Owned};
pub(crate) use thread::this_thread;
