//! Notes of leases to an emulated device's checks.

use gpuheap_driver::{BlockChecks, BlockNote, CUstream};

use crate::device::Context;
use crate::heap::lease::Lease;
use crate::source::raw;

impl Lease {
    /// Tells an emulated device's checks of it, if they are on.
    #[inline]
    pub(super) fn note(&self, context: &Context, tell: impl FnOnce(&dyn BlockChecks, &BlockNote)) {
        if let Some(checks) = context.block_checks()
            && self.key.is_some()
        {
            tell(checks, &self.as_note(context));
        }
    }

    /// Tells them that the heap itself is about to use all of the block.
    pub(super) fn note_whole(&self, context: &Context) {
        Lease { bytes: self.block_bytes, ..*self }
            .note(context, |checks, block| checks.resized(block));
    }

    /// Tells them of the free of it on a stream, else on its own, after it was filled with zeros if
    /// `zeroed`.
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
