//! Streams and the work that is queued in them.

use std::collections::VecDeque;

use gpuheap_driver::{CUhostFn, CUresult, CUstreamCallback};

use crate::kernels::Kernel;
use crate::state::clock::Clock;

pub(crate) struct Stream {
    pub(crate) context: u32,
    pub(crate) kind: StreamKind,
    pub(crate) flags: u32,
    pub(crate) priority: i32,
    pub(crate) id: u64,
    pub(crate) queue: VecDeque<Op>,
    /// True if its first work is a callback that is running now.
    pub(crate) running: bool,
    /// Destroyed by its handle; gone when its work is done.
    pub(crate) destroyed: bool,
    /// When its last work is done, virtual nanoseconds.
    pub(crate) last_done_at: u64,
    /// Up to where it has waited for other streams by events: the driver's pools follow these.
    pub(crate) waited: Vec<OpRef>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StreamKind {
    /// The default stream that waits for all blocking streams.
    Legacy,
    /// A thread's own default stream.
    PerThread,
    Created,
}

/// Work of a stream by the stream's place and the work's id. Ids only grow, so that it names done
/// work once the stream's first queued work is a later one, whoever has the place by then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OpRef {
    pub(crate) stream: u32,
    pub(crate) id: u64,
}

pub(crate) struct Op {
    pub(crate) id: u64,
    /// Under a lag: when it is done.
    pub(crate) done_at: u64,
    /// Work of other streams that must be done before. All of it is older.
    pub(crate) after: Vec<OpRef>,
    pub(crate) work: Work,
}

#[derive(Clone)]
pub(crate) enum Work {
    /// Only a point of the stream.
    Nothing,
    Copy(Box<CopyWork>),
    Fill(FillWork),
    Kernel(Box<KernelWork>),
    /// Marks the event of this handle as past.
    Record(usize),
    Callback(Callback),
    /// The freed pool memory at this address may be given to any stream.
    FreePool(u64),
}

/// Where bytes are.
#[derive(Clone)]
pub(crate) enum Place {
    /// At an address that the device sees and the emulator translates.
    Device(u64),
    /// At an address of this process.
    Host(u64),
    /// Taken along at the call.
    Staged(Vec<u8>),
}

/// A copy of a rectangle; one row for a plain copy.
#[derive(Clone)]
pub(crate) struct CopyWork {
    pub(crate) source: Place,
    pub(crate) source_pitch: u64,
    pub(crate) target: Place,
    pub(crate) target_pitch: u64,
    pub(crate) width: u64,
    pub(crate) height: u64,
}

/// A fill of a rectangle; one row for a plain fill.
#[derive(Clone)]
pub(crate) struct FillWork {
    pub(crate) target: u64,
    pub(crate) pitch: u64,
    /// Bytes of a row.
    pub(crate) width: u64,
    pub(crate) height: u64,
    /// The word, repeated to four bytes.
    pub(crate) pattern: [u8; 4],
}

/// A launch of a kernel.
#[derive(Clone)]
pub(crate) struct KernelWork {
    pub(crate) kernel: Kernel,
    /// Its one parameter.
    pub(crate) words: Vec<u64>,
    /// Code with which it loses the context when it runs, because it uses what it may not.
    pub(crate) error: Option<CUresult>,
}

#[derive(Clone)]
pub(crate) struct Callback {
    pub(crate) function: HostFunction,
    /// The caller's data, as an address.
    pub(crate) data: u64,
    /// Clock of all that happened before it, for the checks.
    pub(crate) clock: Option<Box<Clock>>,
}

#[derive(Clone, Copy)]
pub(crate) enum HostFunction {
    Plain(CUhostFn),
    /// Told the stream's handle and status.
    WithStatus(CUstreamCallback, usize),
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

    /// Returns whether it waits for the legacy default stream, and that one for it.
    pub(crate) fn is_blocking(&self) -> bool {
        self.flags & gpuheap_driver::CU_STREAM_NON_BLOCKING == 0
    }

    /// Returns whether work of this id is done.
    pub(crate) fn is_done(&self, id: u64) -> bool {
        self.queue.front().is_none_or(|first| id < first.id)
    }

    /// Remembers that everything queued from now on runs after `op`.
    pub(crate) fn note_wait(&mut self, op: OpRef) {
        match self.waited.iter_mut().find(|known| known.stream == op.stream) {
            Some(known) => known.id = known.id.max(op.id),
            None => self.waited.push(op),
        }
    }

    /// Returns whether everything queued from now on is known to run after `op`.
    pub(crate) fn has_waited_for(&self, op: OpRef) -> bool {
        self.waited.iter().any(|known| known.stream == op.stream && known.id >= op.id)
    }
}
