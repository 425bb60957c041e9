//! Notes of leases for an emulated device's checks.

use gpuheap_driver::{BlockChecks, BlockNote, CUstream};

use crate::device::Context;
use crate::lease::Lease;
use crate::source::raw;

impl Lease {
    /// Passes a note of the lease to an emulated device's checks, if they are on.
    #[inline]
    pub(super) fn note(&self, context: &Context, tell: impl FnOnce(&dyn BlockChecks, &BlockNote)) {
        if let Some(checks) = context.block_checks()
            && self.key.is_some()
        {
            tell(checks, &self.as_note(context));
        }
    }

    /// Notes that the heap itself is about to use all of the block.
    pub(super) fn note_whole(&self, context: &Context) {
        Lease { bytes: self.block_bytes, ..*self }
            .note(context, |checks, block| checks.resized(block));
    }

    /// Notes the free of the lease on `stream`, or on the lease's own stream if `None`. If
    /// `zeroed`, the memory was filled with zeros before the free.
    #[inline]
    pub(super) fn note_freed(&self, context: &Context, stream: Option<CUstream>, zeroed: bool) {
        self.note(context, |checks, block| {
            let stream = stream.unwrap_or(block.stream);
            checks.freed(&BlockNote { stream, ..*block }, zeroed);
        });
    }

    fn as_note(&self, context: &Context) -> BlockNote {
        let Lease { address, bytes, block_bytes: room, stream, .. } = *self;
        BlockNote { context: context.raw(), address, bytes, room, stream: raw(stream) }
    }
}
