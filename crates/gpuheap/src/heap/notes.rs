//! Reports to the emulated device which memory is leased, so that it can check accesses.

use gpuheap_driver::{BlockEvent, BlockNote, CUstream};

use crate::device::Context;
use crate::lease::Lease;
use crate::source::raw;

impl Lease {
    /// Reports an event of the leased memory to an emulated device, if the device checks accesses.
    #[inline]
    pub(super) fn note(&self, context: &Context, event: BlockEvent) {
        self.note_on(context, None, event);
    }

    /// Reports that the heap is about to fill the whole block, including its rounding, with zeros.
    pub(super) fn note_whole(&self, context: &Context) {
        Lease { bytes: self.block_bytes, ..*self }.note(context, BlockEvent::Resized);
    }

    /// Reports the free of the lease on `stream`, or on the lease's own stream if `None`. If
    /// `zeroed`, the memory was filled with zeros before the free.
    #[inline]
    pub(super) fn note_freed(&self, context: &Context, stream: Option<CUstream>, zeroed: bool) {
        let event = if zeroed { BlockEvent::FreedZeroed } else { BlockEvent::Freed };
        self.note_on(context, stream, event);
    }

    #[inline]
    fn note_on(&self, context: &Context, stream: Option<CUstream>, event: BlockEvent) {
        if let Some(checks) = context.block_checks()
            && self.key.is_some()
        {
            let block = self.as_note(context);
            let stream = stream.unwrap_or(block.stream);
            checks.note(event, &BlockNote { stream, ..block });
        }
    }

    fn as_note(&self, context: &Context) -> BlockNote {
        let Lease { address, bytes, block_bytes: room, stream, .. } = *self;
        BlockNote { context: context.raw(), address, bytes, room, stream: raw(stream) }
    }
}
