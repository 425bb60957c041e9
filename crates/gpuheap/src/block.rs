//! One allocation of a heap.

use std::fmt;
use std::sync::Arc;

use crate::error::Error;
use crate::heap::{Shared, State};
use crate::order::StreamRef;
use crate::stream::Stream;

/// Memory of a device, owned: dropping it gives it back to its heap in the order of its stream.
///
/// Its contents are not initialised. A block of zero bytes has a null address and no memory.
#[must_use]
pub struct Block {
    shared: Arc<Shared>,
    stream: StreamRef,
    /// The policy's name for it; `None` for zero bytes.
    key: Option<u32>,
    address: u64,
    bytes: u64,
    block_bytes: u64,
    given_back: bool,
}

impl Block {
    pub(crate) fn new(
        shared: Arc<Shared>,
        stream: StreamRef,
        key: Option<u32>,
        address: u64,
        bytes: u64,
        block_bytes: u64,
    ) -> Block {
        Block { shared, stream, key, address, bytes, block_bytes, given_back: false }
    }

    /// Where the device sees it; zero for zero bytes.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its size as requested, bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Its size with the policy's rounding, bytes.
    pub fn block_bytes(&self) -> u64 {
        self.block_bytes
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
        self.shared.check_device(stream)?;
        self.give_back(|state| state.stream(stream))
    }

    fn give_back(&mut self, stream: impl FnOnce(&mut State) -> StreamRef) -> Result<(), Error> {
        self.given_back = true;
        self.shared.free(self.key, self.bytes, self.block_bytes, stream)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if !self.given_back {
            let stream = self.stream;
            // A destructor reports and carries on: the heap counts the failure.
            let _ = self.give_back(|_| stream);
        }
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Block of {} bytes at {:#x}", self.bytes, self.address)
    }
}
