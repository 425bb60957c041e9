// The examples in the documentation need the two features named below. Without these features, some
// helpers in lower layers are unused.
#![cfg_attr(
    not(all(feature = "arithmetic", feature = "emulator")),
    allow(dead_code, reason = "used by features that are off")
)]
#![cfg(any(not(doctest), all(feature = "arithmetic", feature = "emulator")))]

//! GPU memory with exact statistics and defined release.
//!
//! A device array frees its memory when it is dropped. Caching pools serve the arrays in stream
//! order, under limits, with exact statistics. Memory is returned at defined points: at a drop, at
//! the end of a scope, or at `reclaim`. No GPU is needed: an emulated device is included.
//!
//! The whole life of an array:
//!
//! ```
//! use gpuheap::{Device, DeviceArray, Heap, PoolKind, Tracking};
//!
//! # fn main() -> Result<(), gpuheap::Error> {
//! let device = Device::open("emulated:16GiB")?; // or open_default: first real GPU, else emulated
//! let heap = Heap::builder(&device)
//!     .pool(PoolKind::Binned)
//!     .hard_limit(1 << 30)
//!     .track(Tracking::Counts)
//!     .build()?;
//! let target = heap.target()?; // makes arrays: this heap, a stream, a kind of memory
//!
//! let a = target.array(&[1_i64, 2, 3])?; // copied to the device
//! let b: DeviceArray<f32, _> = target.zeroed((512, 256))?;
//! assert_eq!(a.slice(1..)?.to_vec()?, [2, 3]); // copied to the host
//! assert_eq!(heap.leaks()?.allocations, 2); // outstanding allocations, by line
//!
//! drop(b); // given back in stream order, kept for the next request
//! let meter = heap.meter()?; // measures this section of the program
//! let c = target.filled(1 << 17, 1.5_f32)?;
//! assert_eq!(meter.read()?.allocated_bytes, 512 << 10);
//! println!("{}", heap.memory_status()?);
//!
//! let error = target.zeroed::<f64, _>(1 << 30).unwrap_err(); // with cause and remedy
//! // The 8 GiB exceed the limit by 7 GiB, and 2 MiB of the limit are taken.
//! assert_eq!(error.out_of_memory().unwrap().short_by, Some((7 << 30) + (2 << 20)));
//! c.free()?; // now, with its error if there is one
//! assert_eq!(heap.reclaim_all()?, 512 << 10); // bytes that the driver got back
//! # Ok(()) }
//! ```
//!
//! # Where things are
//!
//! | | |
//! |---|---|
//! | [`Device`], [`Stream`], [`Event`] | devices and their queues of work, real or emulated, opened by name |
//! | [`Heap`], [`HeapBuilder`] | the memory of one device: policy, limits, tracking |
//! | [`Target`] | a heap, a stream and a [kind](MemoryKind) of memory: makes arrays |
//! | [`DeviceArray`], [`SharedArray`], [`DeviceView`] | arrays: owned, shared by count, borrowed |
//! | [`Diagonal`], [`UpperTriangular`], [`Symmetric`], [`Transposed`] | arrays read as diagonal, triangular, symmetric or transposed matrices |
//! | [`Target::register`], [`Target::wrap`] | arrays in a vector of the program, and in foreign memory |
//! | [`Heap::scope`] | a section of a program; its end frees the arrays made in it |
//! | [`Heap::set_limits`], [`TotalLimit`], [`Heap::retry`] | limits of one heap, or of several together; repeats of a foreign call that ran out of memory |
//! | [`Target::adapt`], [`Target::cu`], [`Host::adapt`] | whole structures, moved to the device and back: [`mod@adapt`] |
//! | `&a + &b`, `2.0 * &a`, [`ArrayBase::sum`], [`ArrayBase::copy_slice`] | arithmetic, reductions, copies with steps: [`mod@arithmetic`] |
//! | [`Target::batches`], [`Target::batches_by_memory`] | data larger than the device, [a batch](Batches) at a time |
//! | [`Heap::memory_status`], [`Heap::leaks`], [`Heap::would_fit`] | who holds the memory |
//! | [`Heap::meter`] | bytes, peak, time and lines of a section of the program |
//! | [`Error`] | one type: [its kind](ErrorKind), and [the evidence](OutOfMemory) if memory ran out |
//!
//! # Ways to give memory back
//!
//! | | who waits | memory goes to | kinds of memory |
//! |---|---|---|---|
//! | dropping an array | no thread | the pool | the array's own |
//! | [`free`](DeviceArray::free) | no thread | the pool; returns the error of the free | the array's own |
//! | [`free_early`](SharedArray::free_early) | no thread | the pool, for all handles | the array's own |
//! | [`release`](DeviceArray::release) | the host, for the array's last use | the driver | the array's own |
//! | [`unregister`](DeviceArray::unregister) | the host, for the array's last use | the program, as its vector | registered |
//! | [`reclaim`](Heap::reclaim), [`reclaim_all`](Heap::reclaim_all) | the host, for frees in flight | from the pool to the driver | device |
//! | [`flush`](Heap::flush) | the host, for frees in flight | from the pools to the driver | device, unified, pinned |
//! | [`reset`](Device::reset) | the host, for all work | the driver, including live arrays, except arrays of `driver` heaps | all |
//!
//! Registered memory has no pool. Whichever way a registered array is freed, the host waits for the
//! array's last use and then frees the vector. [Wrapped](Target::wrap) memory stays with its owner.
//!
//! # Work on arrays
//!
//! gpuheap is not a tensor library. It has fills, copies, views, and elementwise
//! [arithmetic](mod@arithmetic); linear algebra is out of scope. Arrays have no strides: elements
//! lie in row-major order without gaps. A slice along the leading axis is a view; a slice along
//! other axes is a copy. Kernels and libraries do the real work. They take an array's pointer and
//! its stream:
//!
//! ```
//! # fn main() -> Result<(), gpuheap::Error> {
//! let device = gpuheap::Device::open("emulated:1GiB")?;
//! let stream = device.stream()?;
//! let array = device.heap()?.on(&stream).zeroed::<u32, _>(1000)?;
//!
//! let pointer = array.device_ptr(&stream)?; // the stream waits for earlier work on the array
//! let code = device.with_current(|driver| {
//!     // SAFETY: the array has 1000 times 32 bits, and is freed in the order of its stream.
//!     unsafe { driver.cuMemsetD32Async(pointer, 7, 1000, stream.raw()) }
//! })?;
//! assert!(code.is_success());
//! assert_eq!(array.to_vec()?, [7; 1000]);
//! # Ok(()) }
//! ```
//!
//! One rule applies: enqueue the work on the stream that the pointer was requested for, before the
//! array is dropped, freed or used on another stream. No other synchronization is needed: a later
//! free, copy or use of the array is ordered after that work.
//!
//! # Features
//!
//! | | |
//! |---|---|
//! | `arithmetic` | [arithmetic](mod@arithmetic) of arrays, by default; without it the kernels are not built |
//! | `arrays` | arrays, scopes, adapted structures and batches, by default; without it heaps hand out [blocks](Block) alone |
//! | `emulator` | emulated devices ([`emu`]), by default; without it neither the emulator nor its dependencies are built |
//! | `half` | numbers of 16 bits on the device: [`cu`](Target::cu) adapts them |
//! | `sprs` | sparse matrices are adapted |
//!
//! Signatures use types of [`driver`], [`emu`], [`ndarray`] and [`bytemuck`]. All are re-exported
//! here. A program therefore depends on gpuheap alone.
//!
//! # The environment
//!
//! Environment variables such as `GPUHEAP_POOL` and `GPUHEAP_MEMORY_LIMIT` set defaults for
//! builders. `docs/environment.md` lists all of them, with their values.

// Unit tests share helpers with `tests/`, where the library's name is `gpuheap`.
#[cfg(all(test, feature = "emulator"))]
extern crate self as gpuheap;

#[cfg(feature = "arrays")]
pub mod adapt;
#[cfg(feature = "arithmetic")]
pub mod arithmetic;
#[cfg(feature = "arrays")]
mod array;
#[cfg(feature = "arrays")]
mod batches;
mod device;
mod error;
mod event;
#[cfg(feature = "arithmetic")]
pub mod guide;
mod heap;
mod kind;
mod lease;
mod logging;
mod measure;
mod program;
mod settings;
mod size;
mod source;
mod stream;
mod sync;
#[cfg(all(test, feature = "emulator"))]
mod tests;
mod thread_cache;
mod thread_stream;
mod total_limit;
mod track;

#[cfg(feature = "arrays")]
pub use adapt::{Adapt, Host};
#[cfg(feature = "arithmetic")]
pub use arithmetic::{Number, Operand, Scalar};
#[cfg(feature = "arrays")]
#[doc(hidden)]
pub use array::admission::admitted;
#[cfg(feature = "arrays")]
pub use array::scope::{Handle, Scope};
#[cfg(feature = "arrays")]
pub use array::scope_report::{Kept, ScopeReport};
#[cfg(feature = "arrays")]
pub use array::target::Target;
#[cfg(feature = "arrays")]
pub use array::unified::{Advice, Location};
#[cfg(feature = "arrays")]
pub use array::{
    ArrayBase, ArrayData, ArrayDataMut, DeviceArray, DeviceView, DeviceViewMut, Diagonal, Element,
    HostData, HostMut, HostRef, LowerTriangular, Owned, RegisterError, ResizeError, Shared,
    SharedArray, Symmetric, Transposed, Triangle, UninitArray, UpperTriangular, View, ViewMut,
};
#[cfg(feature = "arrays")]
pub use batches::{Ahead, Batches, Feeder, Items, Rows, Source, Uploads};
/// Traits that mark types as plain data, in the version that [`Element`] requires.
#[cfg(feature = "arrays")]
pub use bytemuck;
#[cfg(feature = "emulator")]
pub use device::profile;
pub use device::{Device, DeviceInfo};
pub use error::{Cause, Consumer, Error, ErrorKind, OutOfMemory, ReclaimStep};
pub use event::Event;
#[doc(hidden)]
pub use gpuheap_capture::SourceLine;
#[cfg(feature = "arrays")]
pub use gpuheap_derive::Adapt;
/// The crate of the driver API. `raw` methods and [`Device::driver`] return its types.
pub use gpuheap_driver as driver;
use gpuheap_driver::fork;
#[cfg(feature = "emulator")]
pub use gpuheap_emu as emu;
#[doc(inline)]
pub use gpuheap_pool::{AllocStats, Limits, PoolKind, UnknownPool};
#[doc(inline)]
pub use gpuheap_publish::Access;
pub use heap::Heap;
pub use heap::block::Block;
pub use heap::builder::HeapBuilder;
pub use heap::fit::{Fit, InTheWay};
pub use heap::flush::{FlushReport, FlushedKind};
pub use heap::meter::{Meter, Reading};
pub use heap::page_lock::PageLock;
pub use heap::reclaimers::Reclaimer;
pub use heap::recording::Recording;
#[doc(hidden)]
pub use heap::requests::{Requester, find_requesters_by};
pub use heap::retry::RunsOut;
#[doc(hidden)]
pub use heap::staging::Staging;
pub use heap::status::{KindStatus, MemoryStatus};
pub use heap::usage::Usage;
pub use kind::MemoryKind;
pub use measure::ThreadUsage;
/// Shapes and host arrays, in the version that [`Target`] takes and `to_ndarray` returns.
#[cfg(feature = "arrays")]
pub use ndarray;
pub use size::{Bytes, Size, SizeError};
pub use stream::Stream;
pub use total_limit::TotalLimit;
/// Outstanding allocations at one moment. The C interface compares two snapshots.
#[doc(hidden)]
pub use track::Snapshot;
pub use track::{
    CallStack, Change, Diff, Frame, Leak, Leaks, Outstanding, RecordingStatus, ThreadEnd,
    ThreadShare, Tracking, UnknownTracking, assert_no_leaks,
};
#[doc(hidden)]
pub use track::{WalkFrames, walk_frames_by};

/// Source line of a call, from `#[track_caller]`.
type Caller = &'static std::panic::Location<'static>;
