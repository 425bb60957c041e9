//! One allocation of a heap.

use std::fmt;

use crate::error::Error;
use crate::heap::Heap;
use crate::heap::store::Lease;
use crate::kind::MemoryKind;
use crate::stream::Stream;

/// Memory of a device, owned: dropping it gives it back to its heap in the order of its stream.
///
/// Its contents are not initialised, unless its heap [fills](crate::HeapBuilder::zero_on_alloc) what
/// it hands out. A block of zero bytes has a null address and no memory.
#[must_use]
pub struct Block {
    heap: Heap,
    lease: Lease,
    given_back: bool,
}

impl Block {
    pub(crate) fn new(heap: Heap, lease: Lease) -> Block {
        Block { heap, lease, given_back: false }
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
        self.given_back = true;
        self.heap.free(MemoryKind::Device, self.lease, None, false)
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
        self.heap.check_device(stream)?;
        self.given_back = true;
        self.heap.free(MemoryKind::Device, self.lease, Some(stream), false)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if !self.given_back {
            // A destructor reports and carries on: the heap counts the failure.
            let _ = self.heap.free(MemoryKind::Device, self.lease, None, false);
        }
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Block of {} bytes at {:#x}", self.bytes(), self.address())
    }
}
