//! GPU memory that can be accounted for, and that comes back.
//!
//! A [`Heap`] hands out memory of one [`Device`] in stream order, out of blocks that it caches by a
//! policy ([`PoolKind`]), under limits, with an exact account, and with errors that say why there
//! is no memory and how much is missing. It works on a machine with no GPU: an emulated device is
//! part of it.
//!
//! ```
//! use gpuheap::{Device, Heap, PoolKind};
//!
//! # fn main() -> Result<(), gpuheap::Error> {
//! let device = Device::open("emulated:16GiB")?;
//! let stream = device.stream()?;
//! let heap = Heap::builder(&device).pool(PoolKind::Split).hard_limit(1 << 30).build()?;
//!
//! let block = heap.allocate(3 << 20, &stream)?;
//! assert_eq!(heap.usage()?.live, 3 << 20);
//! drop(block); // given back in stream order, kept for the next request
//! assert_eq!(heap.usage()?.live, 0);
//! assert!(heap.reclaim_all()? >= 3 << 20); // bytes that the driver got back
//!
//! let error = heap.allocate(2 << 30, &stream).unwrap_err();
//! assert_eq!(error.out_of_memory().unwrap().short_by, 1 << 30);
//! # Ok(()) }
//! ```

mod array;
mod device;
mod error;
mod event;
mod fork;
mod heap;
mod kind;
mod pool;
mod size;
mod source;
mod stream;
mod target;
#[cfg(test)]
mod tests;

pub use array::unified::{Advice, Location};
pub use array::{
    ArrayBase, DeviceArray, DeviceView, DeviceViewMut, Element, Hold, HoldMut, HostData, HostMut,
    HostRef, Owned, RegisterError, Shared, SharedArray, UninitArray, View, ViewMut,
};
pub use device::{Device, DeviceInfo, profile};
pub use error::{Cause, Error, OutOfMemory};
pub use event::Event;
pub use gpuheap_emu as emu;
pub use heap::Heap;
pub use heap::block::Block;
pub use heap::builder::HeapBuilder;
pub use heap::ladder::Step;
pub use heap::ledger::Ledger;
pub use heap::limits::Limits;
pub use heap::reclaimers::Reclaimer;
pub use heap::usage::Usage;
pub use kind::MemoryKind;
pub use pool::{PoolKind, UnknownPool};
pub use size::{Bytes, Size, SizeError};
pub use stream::Stream;
pub use target::Target;
