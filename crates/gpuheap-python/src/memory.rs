//! A block of a heap, as one holder or several keep it.

use std::sync::{Arc, Mutex, PoisonError};

use gpuheap::{Block, Error};
use gpuheap_driver::CUstream;

use crate::exchange::Lent;
use crate::lines::RecordId;
use crate::owner::Owner;
use crate::scope::{Charge, Counts};
use crate::streams::still_means;

/// A block with the streams that its free has to follow. Freed when dropped.
pub(crate) struct Memory {
    /// `None` once it was returned.
    block: Option<Block>,
    record: Option<RecordId>,
    /// Charge to the scopes of Python, until the free.
    charge: Option<Charge>,
    pub(crate) owner: Arc<Owner>,
    /// Other streams on which the memory is in use: the free comes after their work.
    used_on: Mutex<Vec<gpuheap::Stream>>,
    /// `None` for the default stream of the owner.
    stream: Option<gpuheap::Stream>,
}

impl Memory {
    pub(crate) fn new(
        block: Block,
        record: Option<RecordId>,
        charge: Option<Charge>,
        owner: Arc<Owner>,
        stream: Option<gpuheap::Stream>,
    ) -> Memory {
        if let (Some(record), Some(charge)) = (record, &charge) {
            owner.lines.assign(record, charge.scope());
        }
        Memory { block: Some(block), record, charge, owner, used_on: Mutex::default(), stream }
    }

    /// Address on the device; zero once it was returned.
    pub(crate) fn address(&self) -> u64 {
        self.block.as_ref().map_or(0, Block::address)
    }

    /// Bytes as requested; zero once it was returned.
    pub(crate) fn bytes(&self) -> u64 {
        self.block.as_ref().map_or(0, Block::bytes)
    }

    /// The innermost scope that it is charged to.
    pub(crate) fn scope(&self) -> Option<&Arc<Counts>> {
        self.charge.as_ref().map(Charge::scope)
    }

    /// Returns the stream that it was allocated on.
    pub(crate) fn stream(&self) -> &gpuheap::Stream {
        self.stream.as_ref().unwrap_or(&self.owner.default)
    }

    /// Frees the block, in the order of its stream and of all streams that use it.
    pub(crate) fn give_back(&mut self) -> Result<(), Error> {
        if let Some(record) = self.record.take() {
            self.owner.lines.freed(record);
        }
        self.charge = None;
        let Some(block) = self.block.take() else { return Ok(()) };
        let others = self.used_on.get_mut().unwrap_or_else(PoisonError::into_inner);
        for other in std::mem::take(others) {
            if let Err(error) = order(self.stream(), &other) {
                // The other stream may still use the memory, so nothing may reuse it.
                std::mem::forget(block);
                return Err(error);
            }
        }
        block.free()
    }

    /// Returns whether the free may wait on the host: for work on other streams.
    pub(crate) fn may_wait(&mut self) -> bool {
        !self.used_on.get_mut().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Orders the free after the work that `stream` has by then.
    pub(crate) fn use_on(&self, stream: &gpuheap::Stream) {
        let mut used = self.used_on.lock().unwrap_or_else(PoisonError::into_inner);
        if stream.id() != self.stream().id() && !used.iter().any(|known| known.id() == stream.id())
        {
            used.push(stream.clone());
        }
    }
}

/// Orders later work of `stream` after the work of `other`: by an event, or if a capture of a graph
/// forbids that, by a wait on the host. The work of an ended stream may still run and cannot be
/// named, so the host waits for the whole device.
fn order(stream: &gpuheap::Stream, other: &gpuheap::Stream) -> Result<(), Error> {
    if has_ended(other) {
        return other.device().synchronize();
    }
    let ordered = other.record().and_then(|event| stream.wait(&event));
    ordered.or_else(|_| other.synchronize())
}

/// Returns whether a stream has ended, or its handle means another stream by now.
pub(crate) fn has_ended(stream: &gpuheap::Stream) -> bool {
    let is_default = stream.raw().0 <= CUstream::PER_THREAD.0;
    let means = || matches!(still_means(stream), Ok(None | Some(true)));
    stream.is_retired() || (!is_default && !means())
}

impl Lent for Memory {
    fn hand_to(&self, consumer: &gpuheap::Stream) -> Result<(), Error> {
        self.use_on(consumer);
        if consumer.id() != self.stream().id() {
            consumer.wait(&self.stream().record()?)?;
        }
        Ok(())
    }

    fn is_read_only(&self) -> bool {
        false
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // The heap counts memory that it could not free as pending. A destructor returns no error.
        let _ = self.give_back();
    }
}
