//! Blocks: allocations of a heap.

use std::any::Any;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use gpuheap_pool::Gone;

use crate::Caller;
use crate::error::Error;
use crate::heap::{Heap, HeapInner};
use crate::kind::MemoryKind;
use crate::lease::Lease;
use crate::measure;
use crate::stream::Stream;
use crate::thread_cache::ThreadCache;

/// An owned block of device memory, or of another kind if [`allocate_kind`](Heap::allocate_kind)
/// made it. Dropping the block returns its memory to the heap, in the order of the block's stream.
///
/// The contents are uninitialized, unless the heap [fills](crate::HeapBuilder::zero_on_alloc)
/// allocated memory. A block of zero bytes has the address 0 and no memory.
///
/// A block may be dropped on any thread. Its heap lives at least as long as the block.
#[must_use]
pub struct Block {
    way: ReturnPath,
    lease: Lease,
    given_back: bool,
}

/// Way in which a block returns to its heap.
enum ReturnPath {
    /// The block returns through the thread cache that served it. Only device memory uses this
    /// path. The heap keeps that cache while the block lives, so blocks need no reference count.
    Cache(&'static ThreadCache),
    Heap(Arc<HeapInner>, MemoryKind),
}

impl Heap {
    /// Allocates `bytes` for use on `stream`, ordered after the work already enqueued there. A
    /// request that the cache serves does not wait for the device. A request that takes memory from
    /// the driver may wait: the heap may first return unused segments with `cuMemFree`, and that
    /// call waits for the device.
    ///
    /// If memory is short, the heap runs its reclaim steps ([`ReclaimStep`](crate::ReclaimStep))
    /// before it fails. It waits for frees in flight, in this heap and in this process's other
    /// heaps on the device. It also makes those heaps give back cached memory.
    ///
    /// # Errors
    ///
    /// [Out of memory](Error::out_of_memory); the stream belongs to another device; a driver error.
    /// An error leaves the statistics unchanged.
    #[inline]
    #[track_caller]
    pub fn allocate(&self, bytes: u64, stream: &Stream) -> Result<Block, Error> {
        Block::allocate(self.inner(), MemoryKind::Device, bytes, stream, Location::caller())
    }

    /// Allocates `bytes` of unified or pinned memory. The call waits and runs reclaim steps as
    /// [`allocate`](Heap::allocate) does for device memory. The host may use the memory after
    /// `stream` has completed the work enqueued before this call, and until the free. If host and
    /// device cannot access unified memory concurrently (WSL2), no work may run on the device while
    /// the host uses the memory.
    ///
    /// # Errors
    ///
    /// The errors of [`allocate`](Heap::allocate); the device does not support the kind; the kind
    /// is registered memory (only the program allocates registered memory).
    #[track_caller]
    pub fn allocate_kind(
        &self,
        kind: MemoryKind,
        bytes: u64,
        stream: &Stream,
    ) -> Result<Block, Error> {
        self.inner().check_kind(kind)?;
        Block::allocate(self.inner(), kind, bytes, stream, Location::caller())
    }

    /// Allocates `bytes` from this thread's cache for `stream`, without a lock and without waiting.
    /// Returns `None` if the cache cannot serve the request, or if the heap tracks allocations.
    /// [`allocate`](Heap::allocate) may still succeed then.
    ///
    /// Some callers release a lock, such as an interpreter's, before a request that may wait. They
    /// can try this call first, without releasing the lock.
    #[inline]
    pub fn allocate_cached(&self, bytes: u64, stream: &Stream) -> Option<Block> {
        let heap = self.inner();
        let (lease, cache) = heap.allocate_cached(MemoryKind::Device, bytes, stream)?;
        Some(Block { way: ReturnPath::Cache(cache), lease, given_back: false })
    }
}

impl Block {
    #[inline(always)]
    fn allocate(
        heap: &Arc<HeapInner>,
        kind: MemoryKind,
        bytes: u64,
        stream: &Stream,
        at: Caller,
    ) -> Result<Block, Error> {
        let (lease, cache) = heap.allocate(kind, bytes, stream, false, at)?;
        let way = match cache {
            Some(cache) if kind == MemoryKind::Device => ReturnPath::Cache(cache),
            _ => ReturnPath::Heap(heap.clone(), kind),
        };
        Ok(Block { way, lease, given_back: false })
    }

    /// Returns the address; 0 for a block of zero bytes. Memory that both host and device may use
    /// has the same address on both.
    pub fn address(&self) -> u64 {
        self.lease.address
    }

    /// Returns the size as requested, in bytes.
    pub fn bytes(&self) -> u64 {
        self.lease.bytes
    }

    /// Returns the size with the pool's rounding, in bytes.
    pub fn block_bytes(&self) -> u64 {
        self.lease.block_bytes
    }

    /// Returns the kind of memory.
    pub fn kind(&self) -> MemoryKind {
        match self.way {
            ReturnPath::Cache(_) => MemoryKind::Device,
            ReturnPath::Heap(_, kind) => kind,
        }
    }

    /// Frees the block in the order of the stream that it was allocated on, like a drop, and
    /// returns the error if the free fails. Waits for the device in the same cases as
    /// [`free_on`](Block::free_on).
    ///
    /// # Errors
    ///
    /// A driver error. Even then, the block is freed or counted as pending.
    #[inline]
    pub fn free(mut self) -> Result<(), Error> {
        self.give_back(None)
    }

    /// Frees the block as [`free`](Block::free) does, with the same errors, and does not move it.
    ///
    /// # Safety
    ///
    /// After this call, the caller does not use the block, except to drop it.
    #[doc(hidden)]
    #[inline]
    pub unsafe fn free_in_place(&mut self) -> Result<(), Error> {
        self.give_back(None)
    }

    /// Frees the block in the order of both `stream` and the block's own stream, on which it was
    /// allocated. An event makes `stream` wait for the work enqueued on the block's own stream so
    /// far. The host waits only in these cases:
    ///
    /// * One of the two streams is capturing a graph or was [retired](Stream::is_retired), so
    ///   neither can wait for the other. The host then waits for one of the two streams.
    /// * The free returns memory to the driver. It does so above a soft limit, for blocks above 128
    ///   MiB in the `binned` pool, and always in the `none` pool.
    /// * The heap [fills freed memory with zeros](crate::HeapBuilder::zero_on_free), and the stream
    ///   has ended.
    ///
    /// [The guide](crate::guide::freeing) lists these cases for all memory.
    ///
    /// The event and the wait for it take four driver calls.
    /// [`free_on_unchecked`](Block::free_on_unchecked) avoids them.
    ///
    /// # Errors
    ///
    /// If the heap refuses `stream`, for example because it belongs to another device, the block is
    /// freed on its own stream. If the two streams cannot be ordered, because both are capturing a
    /// graph or the driver fails, the block stays with the heap: its memory is counted as live and
    /// not reused. After any other driver error, the block is still freed or counted as pending.
    pub fn free_on(mut self, stream: &Stream) -> Result<(), Error> {
        // The block's own stream needs no check. A foreign stream is checked even if it has the
        // same id: it may have been retired and wrapped again.
        if stream.id() == self.lease.stream_id && !stream.is_foreign() {
            return self.give_back(None);
        }
        let heap = self.heap()?;
        let kind = self.kind();
        heap.store(kind).check_stream(stream)?;
        self.given_back = true;
        heap.free_ordered(kind, self.lease, stream)?;
        Ok(())
    }

    /// Frees the block in the order of `stream` alone, without a driver call to order streams.
    /// Waits for the device as [`free_on`](Block::free_on) does if the free returns memory to the
    /// driver.
    ///
    /// # Safety
    ///
    /// `stream` is the block's own stream, or it has waited for a point of the block's own stream.
    /// That point comes after the allocation, and after all work on the block that is not on
    /// `stream`. Otherwise the next user of the memory on `stream` races with work that still uses
    /// the memory: work on this block, or work of a previous owner. At the allocation, only the
    /// block's own stream was made to wait for the previous owner's work.
    ///
    /// # Errors
    ///
    /// If `stream` is of another device, the block is freed on its own stream. After a driver
    /// error, the block is still freed or counted as pending.
    pub unsafe fn free_on_unchecked(mut self, stream: &Stream) -> Result<(), Error> {
        if stream.id() == self.lease.stream_id {
            if !stream.is_foreign() {
                return self.give_back(None);
            }
            // The program may have retired this foreign stream, and made a new object for its
            // handle. The old stream's cache was closed then, so `keep` refuses the old blocks.
            if self.keep() {
                self.given_back = true;
                return Ok(());
            }
        }
        self.heap()?.store(self.kind()).check_stream(stream)?;
        self.give_back(Some(stream))
    }

    #[inline]
    fn give_back(&mut self, stream: Option<&Stream>) -> Result<(), Error> {
        self.given_back = true;
        if stream.is_none() && self.keep() { Ok(()) } else { self.give_back_unkept(stream) }
    }

    /// Stores the block in a thread's cache, if the cache has room and the heap neither fills nor
    /// tracks memory.
    #[inline]
    fn keep(&self) -> bool {
        let ReturnPath::Cache(cache) = self.way else { return false };
        let _time = measure::memory_management();
        cache.is_plain() && cache.keep(&self.lease)
    }

    #[inline(never)]
    fn give_back_unkept(&self, stream: Option<&Stream>) -> Result<(), Error> {
        self.heap()?.free(self.kind(), self.lease, stream, false)
    }

    fn heap(&self) -> Result<Arc<HeapInner>, Error> {
        match &self.way {
            // This check comes before the cache's lock: in a forked child, a thread of the parent
            // may have held that lock.
            ReturnPath::Cache(cache) if cache.is_forked() => Err(Gone::Forked.into()),
            // The heap lives as long as its blocks. So if the heap has ended, the device was reset.
            ReturnPath::Cache(cache) => {
                let heap: Arc<dyn Any + Send + Sync> = cache.heap().ok_or(Gone::Reset)?;
                Ok(heap.downcast().map_err(|_| Gone::Reset)?)
            }
            ReturnPath::Heap(heap, _) => Ok(heap.clone()),
        }
    }
}

impl Drop for Block {
    #[inline]
    fn drop(&mut self) {
        if !self.given_back {
            // A destructor cannot return the error, so the heap counts the failure.
            let _ = self.give_back(None);
        }
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Block of {} bytes at {:#x}", self.bytes(), self.address())
    }
}
