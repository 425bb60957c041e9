//! One allocation of a heap.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use gpuheap_pool::Gone;

use crate::error::Error;
use crate::heap::lease::Lease;
use crate::heap::{Heap, Inner};
use crate::kind::MemoryKind;
use crate::measure;
use crate::stream::Stream;
use crate::thread_cache::ThreadCache;

/// Memory of a device, owned: dropping it gives it back to its heap in the order of its stream.
///
/// Its contents are not initialised, unless its heap [fills](crate::HeapBuilder::zero_on_alloc) what
/// it hands out. A block of zero bytes has a null address and no memory.
///
/// It may be dropped on any thread. Its heap lives for as long as it does.
#[must_use]
pub struct Block {
    way: Way,
    lease: Lease,
    given_back: bool,
}

/// How a block gets back to its heap.
enum Way {
    /// Through the cache that it came through, which its heap keeps for as long as the block lives.
    /// There is no count for threads to share.
    Cache(&'static ThreadCache),
    Heap(Arc<Inner>),
}

impl Heap {
    /// Allocates `bytes` for use on `stream`, ordered after the work already enqueued there. A
    /// request that the cache serves does not wait for the device. A request that takes memory from
    /// the driver may wait, because giving unused segments back for it does (`cuMemFree`).
    ///
    /// If memory is short, the heap runs its reclaim steps ([`ReclaimStep`](crate::ReclaimStep)) before it fails.
    /// It waits for frees in flight, including those of other heaps of this process on the device,
    /// and makes these heaps give cached memory back.
    ///
    /// # Errors
    ///
    /// [Out of memory](Error::out_of_memory); the stream is of another device; a driver error.
    /// After an error, the statistics are as before the call.
    #[inline]
    #[track_caller]
    pub fn allocate(&self, bytes: u64, stream: &Stream) -> Result<Block, Error> {
        Block::allocate(self.handle.inner(), bytes, stream, Location::caller())
    }
}

impl Block {
    #[inline]
    pub(crate) fn allocate(
        heap: &Arc<Inner>,
        bytes: u64,
        stream: &Stream,
        at: &'static Location<'static>,
    ) -> Result<Block, Error> {
        match heap.lease_kept(bytes, stream) {
            Some((lease, cache)) => Ok(Block { way: Way::Cache(cache), lease, given_back: false }),
            None => Block::allocate_unkept(heap, bytes, stream, at),
        }
    }

    #[inline(never)]
    fn allocate_unkept(
        heap: &Arc<Inner>,
        bytes: u64,
        stream: &Stream,
        at: &'static Location<'static>,
    ) -> Result<Block, Error> {
        match heap.cache_for(stream) {
            Some(cache) => {
                let lease = heap.lease_unkept(bytes, stream, cache)?;
                Ok(Block { way: Way::Cache(cache), lease, given_back: false })
            }
            None => Block::allocate_elsewhere(heap, bytes, stream, at),
        }
    }

    #[cold]
    #[inline(never)]
    fn allocate_elsewhere(
        heap: &Arc<Inner>,
        bytes: u64,
        stream: &Stream,
        at: &'static Location<'static>,
    ) -> Result<Block, Error> {
        let (lease, cache) = heap.lease(MemoryKind::Device, bytes, stream, false, at)?;
        let way = cache.map_or_else(|| Way::Heap(heap.clone()), Way::Cache);
        Ok(Block { way, lease, given_back: false })
    }

    /// Where the device sees it; zero for zero bytes.
    pub fn address(&self) -> u64 {
        self.lease.address
    }

    /// Its size as requested, bytes.
    pub fn bytes(&self) -> u64 {
        self.lease.bytes
    }

    /// Its size with the policy's rounding, bytes.
    pub fn block_bytes(&self) -> u64 {
        self.lease.block_bytes
    }

    /// Gives it back as dropping it does, in the order of the stream that it was allocated on, and
    /// says what failed. Waits for the device as [`free_on`](Block::free_on) does.
    ///
    /// # Errors
    ///
    /// The driver's own. The block is given back, or accounted for as pending, all the same.
    pub fn free(mut self) -> Result<(), Error> {
        self.give_back(None)
    }

    /// Gives it back in the order of `stream` and of the stream that it was allocated on: `stream` is
    /// made to wait for what the block's own stream was given so far, by an event. The host does not
    /// wait, unless
    ///
    /// * one of the two captures a graph or was [retired](Stream::is_retired), so that no stream can
    ///   wait for the other; then the host waits for one of them;
    /// * memory goes back to the driver by the free: above a soft limit, of the `binned` pool above
    ///   128 MiB, and always of the `none` pool.
    ///
    /// The event and the wait for it take four driver calls.
    /// [`free_on_unchecked`](Block::free_on_unchecked) spares them.
    ///
    /// # Errors
    ///
    /// A stream of another device, in which case the block is given back on its own stream. Two streams
    /// that cannot be ordered, because both capture a graph or the driver fails: the block then stays
    /// with the heap, accounted as live, and nothing else can have its memory. The driver's own, where
    /// the block is given back, or accounted for as pending, all the same.
    pub fn free_on(mut self, stream: &Stream) -> Result<(), Error> {
        // Its own stream is of its own device. A foreign one may have been retired and wrapped again.
        if stream.id() == self.lease.stream_id && !stream.is_foreign() {
            return self.give_back(None);
        }
        let heap = self.heap()?;
        heap.store(MemoryKind::Device).check_device(stream)?;
        self.given_back = true;
        heap.free_ordered(MemoryKind::Device, self.lease, stream)?;
        measure::note_freed(self.lease.bytes);
        Ok(())
    }

    /// Gives it back in the order of `stream` alone, with no driver call for the order of streams.
    /// Waits for the device as [`free_on`](Block::free_on) does where memory goes back to the driver.
    ///
    /// # Safety
    ///
    /// `stream` is the block's own, or it has waited for a point of the block's own stream that comes
    /// after the allocation, and after all work on the block that is not on `stream`. Otherwise the
    /// next user of the memory on `stream` meets work that still uses it: that of the block, and
    /// that which the allocation made the block's own stream wait for.
    ///
    /// # Errors
    ///
    /// A stream of another device, in which case the block is given back on its own stream; the
    /// driver's own. The block is given back, or accounted for as pending, all the same.
    pub unsafe fn free_on_unchecked(mut self, stream: &Stream) -> Result<(), Error> {
        if stream.id() == self.lease.stream_id {
            if !stream.is_foreign() {
                return self.give_back(None);
            }
            // A foreign stream may have been retired and wrapped again. The cache of the retired one
            // was closed before that, and keeps nothing.
            if let Way::Cache(cache) = self.way
                && cache.is_plain()
                && self.keep(cache)
            {
                self.given_back = true;
                measure::note_freed(self.lease.bytes);
                return Ok(());
            }
        }
        self.heap()?.store(MemoryKind::Device).check_device(stream)?;
        self.give_back(Some(stream))
    }

    #[inline]
    fn give_back(&mut self, stream: Option<&Stream>) -> Result<(), Error> {
        self.given_back = true;
        measure::note_freed(self.lease.bytes);
        match self.way {
            Way::Cache(cache) if stream.is_none() && cache.is_plain() && self.keep(cache) => Ok(()),
            _ => self.give_back_unkept(stream),
        }
    }

    #[inline]
    fn keep(&self, cache: &ThreadCache) -> bool {
        let _time = measure::memory_management();
        cache.keep(&self.lease)
    }

    #[inline(never)]
    fn give_back_unkept(&mut self, stream: Option<&Stream>) -> Result<(), Error> {
        match self.way {
            Way::Cache(cache) if stream.is_none() && cache.is_plain() => {
                cache.free(self.lease).unwrap_or_else(|| self.give_back_elsewhere(stream))
            }
            _ => self.give_back_elsewhere(stream),
        }
    }

    #[cold]
    #[inline(never)]
    fn give_back_elsewhere(&mut self, stream: Option<&Stream>) -> Result<(), Error> {
        self.heap()?.free(MemoryKind::Device, self.lease, stream, false)
    }

    fn heap(&self) -> Result<Arc<Inner>, Error> {
        match &self.way {
            // Before its lock: in a forked child a thread of the parent may have held it.
            Way::Cache(cache) if cache.is_forked() => Err(Gone::Forked.into()),
            // Without a heap there are no blocks, unless the device was reset.
            Way::Cache(cache) => {
                let heap = cache.heap().ok_or(Gone::Reset)?.into_any();
                Ok(heap.downcast().map_err(|_| Gone::Reset)?)
            }
            Way::Heap(heap) => Ok(heap.clone()),
        }
    }
}

impl Drop for Block {
    #[inline]
    fn drop(&mut self) {
        if !self.given_back {
            // A destructor reports and carries on: the heap counts the failure.
            let _ = self.give_back(None);
        }
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Block of {} bytes at {:#x}", self.bytes(), self.address())
    }
}
