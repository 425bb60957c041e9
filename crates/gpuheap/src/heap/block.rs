//! One allocation of a heap.

use std::fmt;
use std::sync::Arc;

use crate::error::Error;
use crate::front::ThreadCache;
use crate::heap::Inner;
use crate::heap::store::Lease;
use crate::kind::MemoryKind;
use crate::stream::Stream;

/// Memory of a device, owned: dropping it gives it back to its heap in the order of its stream.
///
/// Its contents are not initialised, unless its heap [fills](crate::HeapBuilder::zero_on_alloc) what
/// it hands out. A block of zero bytes has a null address and no memory.
///
/// It may be dropped on any thread. Its heap lives for as long as it does.
#[must_use]
pub struct Block {
    home: Home,
    lease: Lease,
    given_back: bool,
}

/// What keeps a block's heap alive.
enum Home {
    /// The cache that it came through: a count that threads do not share.
    Cache(Arc<ThreadCache>),
    Heap(Arc<Inner>),
}

impl Block {
    pub(crate) fn new(cache: Option<Arc<ThreadCache>>, heap: &Arc<Inner>, lease: Lease) -> Block {
        let home = cache.map_or_else(|| Home::Heap(heap.clone()), Home::Cache);
        Block { home, lease, given_back: false }
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

    /// Gives it back in the order of `stream`, on which it was last used. Does not wait for the
    /// device, unless memory goes back to the driver by it: above a soft limit, or of the `binned`
    /// pool above 128 MiB.
    ///
    /// # Errors
    ///
    /// A stream of another device, in which case the block is given back on its own stream; the
    /// driver's own. The block is given back, or accounted for as pending, all the same.
    pub fn free_on(mut self, stream: &Stream) -> Result<(), Error> {
        self.heap().store(MemoryKind::Device).check_device(stream)?;
        self.give_back(Some(stream))
    }

    fn give_back(&mut self, stream: Option<&Stream>) -> Result<(), Error> {
        self.given_back = true;
        let cache = match &self.home {
            Home::Cache(cache) => Some(&**cache),
            Home::Heap(_) => None,
        };
        self.heap().free(MemoryKind::Device, self.lease, stream, false, cache)
    }

    fn heap(&self) -> &Arc<Inner> {
        match &self.home {
            Home::Cache(cache) => cache.inner(),
            Home::Heap(heap) => heap,
        }
    }
}

impl Drop for Block {
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
