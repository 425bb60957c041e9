//! Streams and the work that is queued in them.

use std::collections::VecDeque;
use std::sync::Arc;

use gpuheap_driver::CUresult;

use crate::kernels::Kernel;
use crate::state::clock::Clock;
use crate::state::user_object::{Callback, Kept};

pub(crate) struct Stream {
    pub(crate) context: u32,
    pub(crate) kind: StreamKind,
    pub(crate) flags: u32,
    pub(crate) priority: i32,
    pub(crate) id: u64,
    pub(crate) queue: VecDeque<Op>,
    /// True if the stream's first work is a callback that is running now.
    pub(crate) running: bool,
    /// True once the stream's handle was destroyed. The stream is removed when its work is done.
    pub(crate) destroyed: bool,
    /// Virtual time at which the stream's last work is done, in nanoseconds.
    pub(crate) last_done_at: u64,
    /// Last work of every stream that this stream has waited for through events. Pools use this
    /// work to place allocations.
    pub(crate) waited: Vec<OpRef>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StreamKind {
    /// Default stream that waits for all blocking streams.
    Legacy,
    /// A thread's own default stream.
    PerThread,
    Created,
}

/// Reference to a piece of work: the index of its stream, and its id. Ids only grow. The work is
/// done once the first queued work at this index has a later id. This holds even if another stream
/// reuses the index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OpRef {
    pub(crate) stream: u32,
    pub(crate) id: u64,
}

pub(crate) struct Op {
    pub(crate) id: u64,
    /// Virtual time at which the work is done under `Schedule::Lag`, in nanoseconds.
    pub(crate) done_at: u64,
    /// Work of other streams that must be done before this work. All of it was queued earlier.
    pub(crate) after: Vec<OpRef>,
    pub(crate) work: Work,
}

#[derive(Clone)]
pub(crate) enum Work {
    /// A point in the stream, without effect.
    Nothing,
    Copy(Box<CopyWork>),
    Fill(FillWork),
    Kernel(Box<KernelWork>),
    /// A launch of a kernel that is not run, with the device addresses among its arguments. The
    /// launch counts as a change of the memory at these addresses.
    Foreign(Box<[u64]>),
    /// Records the event with this handle, so that the event counts as reached.
    Record(usize),
    Callback(Callback),
    /// Completes a queued free of the pool memory at this address.
    FreePool(u64),
    /// Ends a graph launch: drops its references to user objects. Contains the clock of the launch,
    /// because the objects' destructors are ordered after the launch.
    Release(Vec<Arc<Kept>>, Option<Box<Clock>>),
}

/// Location of bytes.
#[derive(Clone)]
pub(crate) enum Place {
    /// A device address, to be translated by the emulator.
    Device(u64),
    /// An address of this process.
    Host(u64),
    /// Bytes that the call copied from the program's memory.
    Staged(Vec<u8>),
}

/// A copy of a rectangle. A plain copy is a rectangle with one row.
#[derive(Clone)]
pub(crate) struct CopyWork {
    pub(crate) source: Place,
    pub(crate) source_pitch: u64,
    pub(crate) target: Place,
    pub(crate) target_pitch: u64,
    pub(crate) width: u64,
    pub(crate) height: u64,
}

/// A fill of a rectangle. A plain fill is a rectangle with one row.
#[derive(Clone)]
pub(crate) struct FillWork {
    pub(crate) target: u64,
    pub(crate) pitch: u64,
    /// Bytes of a row.
    pub(crate) width: u64,
    pub(crate) height: u64,
    /// Fill value, repeated to four bytes.
    pub(crate) pattern: [u8; 4],
}

/// A launch of a kernel.
#[derive(Clone)]
pub(crate) struct KernelWork {
    pub(crate) kernel: Kernel,
    /// Words of the kernel's one parameter.
    pub(crate) words: Vec<u64>,
    /// Error that the kernel causes in its context when it runs; `None` if it uses no forbidden
    /// memory.
    pub(crate) error: Option<CUresult>,
}

impl Stream {
    pub(crate) fn new(
        context: u32,
        kind: StreamKind,
        flags: u32,
        priority: i32,
        id: u64,
    ) -> Stream {
        Stream {
            context,
            kind,
            flags,
            priority,
            id,
            queue: VecDeque::new(),
            running: false,
            destroyed: false,
            last_done_at: 0,
            waited: Vec::new(),
        }
    }

    /// Returns whether the stream and the legacy default stream wait for each other.
    pub(crate) fn is_blocking(&self) -> bool {
        self.flags & gpuheap_driver::CU_STREAM_NON_BLOCKING == 0
    }

    /// Returns whether the rule of the legacy default stream orders work of this stream and of
    /// `other`: both are blocking streams of one context, and one is the legacy default stream.
    pub(crate) fn is_ordered_with(&self, other: &Stream) -> bool {
        self.context == other.context
            && self.is_blocking()
            && other.is_blocking()
            && (self.kind == StreamKind::Legacy || other.kind == StreamKind::Legacy)
    }

    /// Returns whether work with this id is done.
    pub(crate) fn is_done(&self, id: u64) -> bool {
        self.queue.front().is_none_or(|first| id < first.id)
    }

    /// Records that all work queued from now on runs after `op`.
    pub(crate) fn note_wait(&mut self, op: OpRef) {
        match self.waited.iter_mut().find(|known| known.stream == op.stream) {
            Some(known) => known.id = known.id.max(op.id),
            None => self.waited.push(op),
        }
    }

    /// Returns whether all work queued from now on is known to run after `op`.
    pub(crate) fn has_waited_for(&self, op: OpRef) -> bool {
        self.waited.iter().any(|known| known.stream == op.stream && known.id >= op.id)
    }
}
