//! Frees memory whose stream was first seen while the stream captured a graph. After the capture,
//! the stream has another id.

use std::sync::Arc;

use gpuheap_pool::StreamRef;

use crate::device::{CaptureStream, NO_STREAM, is_of_capture};
use crate::heap::HeapInner;
use crate::kind::MemoryKind;
use crate::lease::Lease;
use crate::stream::Stream;

/// Lease and stream of a free, with current ids. A stream gets another id when its capture ends.
pub(super) struct Renamed {
    pub(super) lease: Lease,
    /// Stream on which the program frees the lease. `None` unless the heap first saw this stream in
    /// a capture, and the stream still has a valid handle.
    pub(super) stream: Option<Stream>,
    of_lease: LeaseStream,
}

/// Own stream of a lease (the record of a block), if the block was allocated in a capture.
enum LeaseStream {
    /// The stream is, or may be, part of the capture.
    InCapture(Arc<CaptureStream>),
    /// The capture has ended, and the stream has another id. Kept alive until the free is made.
    After(#[allow(dead_code, reason = "held for its drop")] Stream),
    /// The stream has no valid handle, or was never part of a capture.
    None,
}

impl Renamed {
    /// If the block was allocated in a capture that may still run, counts the free in that capture.
    pub(super) fn note_freed(&self) {
        if let LeaseStream::InCapture(capture) = &self.of_lease {
            capture.note_freed();
        }
    }
}

impl HeapInner {
    /// Looks up the current ids of the lease's own stream, and of the stream on which the program
    /// frees. `None` if neither was first seen in a capture: only the ids of such streams change.
    #[inline]
    pub(super) fn rename(
        &self,
        kind: MemoryKind,
        lease: Lease,
        stream: Option<&Stream>,
    ) -> Option<Renamed> {
        let of_capture = stream.filter(|stream| stream.is_of_capture());
        if !is_of_capture(lease.stream_id) && of_capture.is_none() {
            return None;
        }
        Some(self.rename_streams(kind, lease, of_capture))
    }

    /// Looks up the streams of a free, as [`rename`](HeapInner::rename) does. If the lease's stream
    /// has no current id, the lease's memory is reused only after a wait for the whole device. If
    /// `stream` has no current id, work after its capture may use the memory. The heap then waits
    /// for the device only after the captured graph has ended.
    #[cold]
    fn rename_streams(
        &self,
        kind: MemoryKind,
        mut lease: Lease,
        stream: Option<&Stream>,
    ) -> Renamed {
        let of_lease = match is_of_capture(lease.stream_id) {
            true => self.own_stream(kind, &mut lease),
            false => LeaseStream::None,
        };
        let stream = stream.filter(|stream| !stream.is_retired()).and_then(|stream| {
            let renamed = stream.renamed();
            if let (Err(_), Some(capture)) = (&renamed, stream.capture()) {
                capture.doubt();
            }
            renamed.ok()
        });
        Renamed { lease, stream, of_lease }
    }

    /// Looks up the stream of a lease that was allocated in a capture.
    fn own_stream(&self, kind: MemoryKind, lease: &mut Lease) -> LeaseStream {
        let Some(capture) = self.context.captures.find(lease.stream_id) else {
            self.forget_stream(kind, lease);
            return LeaseStream::None;
        };
        if !capture.is_retired() {
            // SAFETY: the stream's end was not announced and a block of the stream is live, so the
            // program has to keep the stream alive.
            match unsafe { Stream::after_capture(&self.context, &capture) } {
                Ok(None) => return LeaseStream::InCapture(capture),
                Ok(Some(stream)) => {
                    capture.note_freed();
                    lease.stream = self.store(kind).lock().stream(&stream);
                    lease.stream_id = stream.id();
                    return LeaseStream::After(stream);
                }
                Err(_) => {}
            }
        }
        capture.note_freed();
        self.forget_stream(kind, lease);
        LeaseStream::None
    }

    /// Moves a lease without a known stream to the stream for detached frees. No fence covers the
    /// frees on that stream, so the memory is reused only after a wait for the whole device.
    fn forget_stream(&self, kind: MemoryKind, lease: &mut Lease) {
        let stream = self.store(kind).lock().order.detached_stream();
        lease.stream = StreamRef::new(stream.number(), lease.stream.raw());
        lease.stream_id = NO_STREAM;
    }
}
