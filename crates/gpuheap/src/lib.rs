//! GPU memory that can be accounted for, and that comes back.
//!
//! Arrays on the device that manage their own memory. It comes out of caching pools, in stream
//! order, under limits, with an exact account, and goes back when the code says: at drop, at a scope's
//! end, at `reclaim`. It works on a machine with no GPU: an emulated device is part of it.
//!
//! The whole life of an array:
//!
//! ```
//! use gpuheap::{Device, DeviceArray, Heap, PoolKind, Tracking, allocated};
//!
//! # fn main() -> Result<(), gpuheap::Error> {
//! let device = Device::open("emulated:16GiB")?; // or open_default: the first real GPU, if any
//! let heap = Heap::builder(&device)
//!     .pool(PoolKind::Binned)
//!     .hard_limit(1 << 30)
//!     .track(Tracking::Counts)
//!     .build()?;
//! let target = heap.target()?; // where arrays are made: this heap, a stream, a kind of memory
//!
//! let a = target.array(&[1_i64, 2, 3])?; // up
//! let b: DeviceArray<f32, _> = target.zeroed((512, 256))?;
//! assert_eq!(a.slice(1..)?.to_vec()?, [2, 3]); // down
//! assert_eq!(heap.leaks()?.allocations, 2); // who holds what, and since which line
//!
//! drop(b); // given back in stream order, kept for the next request
//! let (c, used) = allocated! { target.filled(1 << 17, 1.5_f32)? };
//! assert_eq!((used.allocations, used.bytes), (1, 512 << 10));
//! println!("{}", heap.memory_status()?);
//!
//! let error = target.zeroed::<f64, _>(1 << 30).unwrap_err(); // says why, and what would do
//! assert_eq!(error.out_of_memory().unwrap().short_by, 7 << 30);
//! c.free()?; // now, with its error if there is one
//! assert_eq!(heap.reclaim_all()?, 512 << 10); // bytes that the driver got back
//! # Ok(()) }
//! ```
//!
//! # Where things are
//!
//! | | |
//! |---|---|
//! | [`Device`], [`Stream`], [`Event`] | what work runs on, real or emulated, chosen by name |
//! | [`Heap`], [`HeapBuilder`] | the memory of one device: policy, limits, tracking |
//! | [`Target`] | a heap, a stream and a [kind](MemoryKind) of memory: makes arrays |
//! | [`DeviceArray`], [`SharedArray`], [`DeviceView`] | arrays: owned, shared by count, borrowed |
//! | [`Diagonal`], [`UpperTriangular`], [`Symmetric`], [`Transposed`] | what the elements of an array mean |
//! | [`Heap::memory_status`], [`Heap::leaks`], [`Heap::would_fit`] | who has the memory |
//! | [`Heap::reclaim`], [`Heap::flush`], [`Device::reset`] | getting it back |
//! | [`Error`] | one type, with [the evidence](OutOfMemory) where memory ran out |
//!
//! The environment can say what a builder does not: `GPUHEAP_DEVICE`, `GPUHEAP_POOL`,
//! `GPUHEAP_MEMORY_LIMIT`, `GPUHEAP_SOFT_MEMORY_LIMIT`, `GPUHEAP_TRACK`, `GPUHEAP_ZERO_ON_FREE`,
//! `GPUHEAP_ZERO_ON_ALLOC`; `docs/environment.md` has their values.

pub mod adapt;
mod array;
mod device;
mod error;
mod event;
mod fork;
mod heap;
mod kind;
mod measure;
mod pool;
mod scope;
mod settings;
mod size;
mod source;
mod stream;
mod target;
#[cfg(test)]
mod tests;
mod track;

pub use adapt::{Adapt, Host};
pub use array::unified::{Advice, Location};
pub use array::{
    ArrayBase, DeviceArray, DeviceView, DeviceViewMut, Diagonal, Element, Hold, HoldMut, HostData,
    HostMut, HostRef, LowerTriangular, Owned, Printed, RegisterError, Shared, SharedArray,
    Symmetric, Transposed, Triangle, UninitArray, UpperTriangular, View, ViewMut,
};
pub use device::{Device, DeviceInfo, profile};
pub use error::{Cause, Consumer, Error, OutOfMemory};
pub use event::Event;
pub use gpuheap_derive::Adapt;
pub use gpuheap_emu as emu;
pub use heap::Heap;
pub use heap::block::Block;
pub use heap::builder::HeapBuilder;
pub use heap::fit::{Fit, InTheWay};
pub use heap::flush::{FlushReport, FlushedKind};
pub use heap::ladder::Step;
pub use heap::ledger::Ledger;
pub use heap::limits::Limits;
pub use heap::reclaimers::Reclaimer;
pub use heap::retry::RunsOut;
pub use heap::status::{KindStatus, MemoryStatus};
pub use heap::usage::{Since, Usage};
pub use kind::MemoryKind;
pub use measure::{Allocated, Counting, Timed, Timing};
pub use pool::{PoolKind, UnknownPool};
pub use scope::{Handle, Kept, Scope, ScopeReport};
pub use size::{Bytes, Size, SizeError};
pub use stream::Stream;
pub use target::Target;
pub use track::{
    CallStack, Change, Diff, Frame, Leak, Leaks, Outstanding, Snapshot, ThreadEnd, ThreadShare,
    Tracking, UnknownTracking, assert_no_leaks,
};
