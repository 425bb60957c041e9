//! Frees a heap's block when its last holder releases the block.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use gpuheap::{Block, Error};
use gpuheap_driver::CUstream;

use crate::exchange::Lent;
use crate::lines::RecordId;
use crate::owner::Owner;
use crate::scope::{Charge, Counts};
use crate::streams::still_means;

/// A block, and the streams whose work must precede its free. The block is freed on drop.
pub(crate) struct Memory {
    /// `None` after the block was freed.
    block: Option<Block>,
    record: Option<RecordId>,
    /// Charge of the memory to Python's scopes. The charge ends when the memory is freed.
    charge: Option<Charge>,
    pub(crate) owner: Arc<Owner>,
    /// Index of the library that the memory was allocated for.
    library: Option<usize>,
    /// Other streams that use the memory. The free comes after their work.
    used_on: Mutex<Vec<gpuheap::Stream>>,
    /// `None` for the owner's default stream.
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
        let (block, used_on) = (Some(block), Mutex::default());
        Memory { block, record, charge, owner, library: None, used_on, stream }
    }

    /// Counts the memory for a library, an index into `LIBRARIES`.
    pub(crate) fn of(mut self, library: usize) -> Memory {
        self.owner.libraries[library].fetch_add(self.bytes(), Ordering::Relaxed);
        self.library = Some(library);
        self
    }

    /// Address on the device; zero after the block was freed.
    pub(crate) fn address(&self) -> u64 {
        self.block.as_ref().map_or(0, Block::address)
    }

    /// Size in bytes, as requested; zero after the block was freed.
    pub(crate) fn bytes(&self) -> u64 {
        self.block.as_ref().map_or(0, Block::bytes)
    }

    /// The innermost scope that the memory is charged to.
    pub(crate) fn scope(&self) -> Option<&Arc<Counts>> {
        self.charge.as_ref().map(Charge::scope)
    }

    /// Returns the stream that the memory was allocated on.
    pub(crate) fn stream(&self) -> &gpuheap::Stream {
        self.stream.as_ref().unwrap_or(&self.owner.default)
    }

    /// Frees the block, after the work of its stream and of all other streams that use it.
    pub(crate) fn give_back(&mut self) -> Result<(), Error> {
        if let Some(record) = self.record.take() {
            self.owner.lines.freed(record);
        }
        self.charge = None;
        let Some(block) = self.block.take() else { return Ok(()) };
        if let Some(library) = self.library {
            self.owner.libraries[library].fetch_sub(block.bytes(), Ordering::Relaxed);
        }
        let others = self.used_on.get_mut().unwrap_or_else(PoisonError::into_inner);
        for other in std::mem::take(others) {
            if let Err(error) = order(self.stream(), &other) {
                // The other stream may still use the memory. Leak the block, so that no allocation
                // reuses it.
                std::mem::forget(block);
                return Err(error);
            }
        }
        block.free()
    }

    /// Returns whether the free may wait on the host for the work of other streams.
    pub(crate) fn may_wait(&mut self) -> bool {
        !self.used_on.get_mut().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Notes that `stream` uses the memory. The free then waits for all work that was enqueued on
    /// `stream` before the free.
    pub(crate) fn use_on(&self, stream: &gpuheap::Stream) {
        if stream.id() == self.stream().id() {
            return;
        }
        let mut used = self.used_on.lock().unwrap_or_else(PoisonError::into_inner);
        if !used.iter().any(|known| known.id() == stream.id()) {
            used.push(stream.clone());
        }
    }
}

/// Orders later work of `stream` after the work of `other`, with an event. If a graph capture
/// forbids the event, the host waits for `other`. The work of a destroyed stream may still run, but
/// no event can be recorded on that stream. The host then waits for the whole device.
fn order(stream: &gpuheap::Stream, other: &gpuheap::Stream) -> Result<(), Error> {
    if has_ended(other) {
        return other.device().synchronize();
    }
    let ordered = other.record().and_then(|event| stream.wait(&event));
    ordered.or_else(|_| other.synchronize())
}

/// Returns whether a stream was destroyed. Its handle may name another stream by now.
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
        if self.block.is_some() {
            // A destructor returns no error. If the free fails, the heap counts the memory as
            // pending.
            let _ = self.give_back();
        }
    }
}
