//! Defines the model of a recording in any format: a list of events with dense allocation numbers.

mod allocator;
mod builder;
mod holder;
mod ids;
mod process;
mod site;
mod stacks;
mod summary;
mod taken;
mod warning;

use std::fmt;
use std::sync::Arc;

pub use allocator::{AllocatorSettings, Segment, SnapshotKeys};
pub use builder::{At, TraceBuilder};
pub use gpuheap_capture::{CopyDirection, CopyMemory, MemoryKind};
pub use holder::Holder;
pub(crate) use ids::next_number;
pub use process::{
    Copies, Coverage, FoldedPairs, Range, RecordedDevice, Recording, RecordingEnd, ThreadInfo,
};
pub use site::hint;
pub(crate) use site::is_runtime;
pub use stacks::Frame;
pub(crate) use stacks::{StackInterner, Stacks};
pub use summary::Summary;
pub use taken::Taken;
pub(crate) use warning::Odd;
pub use warning::{Warning, WarningKind};

/// Allocation events of one device, in the order of the file.
///
/// Guarantees:
/// * Allocation numbers are `0..allocations()`, in the order of the [`Op::Allocate`] events.
/// * Each allocation number is allocated once, then freed at most once. A freed block may stay
///   pending (streams may still use it), until at most one event ends that.
/// * `stream`, `thread` and `stack` of an event are indices into [`streams`](Self::streams),
///   [`threads`](Self::threads) (zero if the format has none) and [`stack`](Self::stack).
/// * Times and event numbers never decrease.
#[derive(Debug, Clone)]
pub struct Trace {
    name: String,
    format: Format,
    device: Option<u32>,
    events: Vec<Event>,
    recorded_from: usize,
    addresses: Vec<u64>,
    streams: Vec<StreamInfo>,
    threads: Option<Vec<u64>>,
    /// Threads of a capture, by index; empty for other formats.
    thread_infos: Vec<ThreadInfo>,
    /// Kind of each allocation; empty if the format records no kinds.
    kinds: Vec<MemoryKind>,
    recording: Option<Arc<Recording>>,
    ranges: Vec<Range>,
    folded: Vec<FoldedPairs>,
    stacks: Arc<Stacks>,
    allocator: Option<AllocatorSettings>,
    keys: Option<SnapshotKeys>,
    segments: Vec<Segment>,
    /// Private pools. Consecutive allocations from one pool share an item, which has the number of
    /// the first allocation, and the pool. Sorted by allocation.
    pools: Vec<(u32, Option<(u64, u64)>)>,
    /// Indices of events, each with the device's free bytes at that event. Sorted by index.
    device_free: Vec<(usize, u64)>,
    unknown_frees: u64,
    inferred_frees: u64,
    warnings: Vec<Warning>,
}

/// Event of device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// Nanoseconds since the first recorded event.
    pub time_ns: u64,
    /// Index into [`Trace::streams`].
    pub stream: u32,
    /// Index into [`Trace::threads`]; zero if the format has no threads.
    pub thread: u32,
    /// Index for [`Trace::stack`]; zero if no stack was recorded.
    pub stack: u32,
    /// Number of the event in the file. The first event is 1, as in [`Summary::events`]. In a log,
    /// it is the number of the row after the header. An event that the summary does not count, such
    /// as an inferred free, has the number of the counted event that implies it or precedes it.
    /// Events before the recording have 0.
    pub number: u32,
    /// Kind of event.
    pub op: Op,
}

/// Kind of event. Sizes are bytes, as the program requested them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// The program allocated memory. A request of zero bytes is valid.
    Allocate {
        /// Number of the allocation.
        allocation: u32,
        /// Requested bytes.
        bytes: u64,
    },
    /// The program freed a block. The block is no longer live. If the file has no
    /// [`Op::FreeCompleted`] for the block, the block may still be pending at the end.
    Free {
        /// Number of the allocation that ends.
        allocation: u32,
    },
    /// A freed block is no longer pending: all streams have completed their work on the block.
    /// Occurs only in formats that record completions ([`Format::records_completion`]).
    FreeCompleted {
        /// Number of the allocation.
        allocation: u32,
    },
    /// A request failed. The program went on without the memory, or ended.
    Fail {
        /// Requested bytes. In a PyTorch snapshot, they are rounded up to the allocator's block
        /// size.
        bytes: u64,
    },
    /// A request was refused, but the framework tried again and succeeded. The second try is the
    /// next [`Op::Allocate`] of the thread on the stream. A retry is not a failure.
    Retry {
        /// Requested bytes. In a PyTorch snapshot, they are rounded up to the allocator's block
        /// size.
        bytes: u64,
    },
    /// The recorded allocator took memory from the driver.
    SegmentTaken {
        /// Device address.
        address: u64,
        /// Bytes taken.
        bytes: u64,
    },
    /// The recorded allocator gave memory back to the driver.
    SegmentGivenBack {
        /// Device address.
        address: u64,
        /// Bytes given back.
        bytes: u64,
    },
}

/// Stream of the recorded program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StreamInfo {
    /// The handle as recorded; 0 is the default stream.
    pub handle: u64,
}

/// Format of the file that a trace was read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// RMM's CSV log.
    RmmCsv,
    /// PyTorch's memory snapshot.
    PytorchSnapshot,
    /// gpuheap's capture of a process.
    Capture,
}

impl Trace {
    /// Returns the name of the file, as the caller gave it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the format of the file.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Returns the device's index, as the recorded program counts devices; `None` if the format
    /// does not record it.
    pub fn device(&self) -> Option<u32> {
        self.device
    }

    /// Returns all events, reconstructed events first.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// Returns the number of events at the start of [`events`](Self::events) that stand for memory
    /// from before the recording. Such events have time zero.
    pub fn reconstructed_events(&self) -> usize {
        self.recorded_from
    }

    /// Returns the number of allocations, including allocations before the recording.
    pub fn allocations(&self) -> u32 {
        // The builder's numbers fit into 32 bits.
        u32::try_from(self.addresses.len()).unwrap_or(u32::MAX)
    }

    /// Returns the device address of each allocation. An address may occur again after a free.
    /// Allocations of zero bytes may share an address.
    pub fn addresses(&self) -> &[u64] {
        &self.addresses
    }

    /// Returns the streams, in order of first appearance.
    pub fn streams(&self) -> &[StreamInfo] {
        &self.streams
    }

    /// Returns the recorded thread ids, in order of first appearance; `None` if the format does not
    /// record threads.
    pub fn threads(&self) -> Option<&[u64]> {
        self.threads.as_deref()
    }

    /// Returns facts about the thread with this index; `None` if the format does not record them.
    pub fn thread_info(&self, thread: u32) -> Option<&ThreadInfo> {
        self.thread_infos.get(thread as usize)
    }

    /// Returns the kind of an allocation's memory. In formats without kinds, all memory is
    /// [`MemoryKind::Device`].
    pub fn kind(&self, allocation: u32) -> MemoryKind {
        self.kinds.get(allocation as usize).copied().unwrap_or_default()
    }

    /// Returns the ranges that the program named, in the order of their starts.
    pub fn ranges(&self) -> &[Range] {
        &self.ranges
    }

    /// Returns the allocations that the recorder only counted, in the order of the file. They are
    /// in [`summary`](Self::summary), but not in [`events`](Self::events).
    pub fn folded(&self) -> &[FoldedPairs] {
        &self.folded
    }

    /// Returns facts about the recorded process; `None` if the file is not a capture.
    pub fn recording(&self) -> Option<&Recording> {
        self.recording.as_deref()
    }

    /// Returns the frames of a stack, innermost first. Stack 0 and unknown numbers have no frames.
    pub fn stack(&self, stack: u32) -> impl ExactSizeIterator<Item = &Frame> {
        self.stacks.frames(stack)
    }

    /// Returns the file name of a stack's innermost native code outside of CUDA, such as
    /// `libtorch_cuda.so`. `None` if the format does not record it.
    pub fn module(&self, stack: u32) -> Option<&str> {
        self.stacks.module(stack)
    }

    /// Returns the settings of the recorded allocator; `None` if the format does not record them.
    pub fn allocator_settings(&self) -> Option<&AllocatorSettings> {
        self.allocator.as_ref()
    }

    /// Returns how the file's keys differ from the keys of PyTorch 2.11; `None` if the file is not
    /// a PyTorch snapshot.
    pub fn snapshot_keys(&self) -> Option<&SnapshotKeys> {
        self.keys.as_ref()
    }

    /// Returns the segments that the recorded allocator held at the end, ordered by address. Empty
    /// if the format does not record segments, or if
    /// [`ReadOptions::recorded_only`](crate::ReadOptions::recorded_only) is set.
    pub fn segments_at_end(&self) -> &[Segment] {
        &self.segments
    }

    /// Returns the private pool of an allocation; `(0, 0)` is PyTorch's default pool. `None` if the
    /// file does not name the pool. PyTorch 2.11 does not record pools of requests; newer releases
    /// may.
    pub fn pool(&self, allocation: u32) -> Option<(u64, u64)> {
        let after = self.pools.partition_point(|&(first, _)| first <= allocation);
        self.pools.get(after.checked_sub(1)?)?.1
    }

    /// Returns the free bytes of the device, as the driver reported them when the request of this
    /// event failed. `None` if the file has no figure.
    pub fn device_free(&self, event: usize) -> Option<u64> {
        let at = self.device_free.binary_search_by_key(&event, |&(index, _)| index).ok()?;
        Some(self.device_free[at].1)
    }

    /// Returns the number of frees whose allocation is not in the trace. Such frees are not events.
    pub fn unknown_frees(&self) -> u64 {
        self.unknown_frees
    }

    /// Returns the number of frees that the file lacks and a later event implies: an allocation at
    /// the address, or the end of the block's pending state.
    pub fn inferred_frees(&self) -> u64 {
        self.inferred_frees
    }

    /// Returns warnings about oddities of the file. The file was read in spite of them.
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// Returns counts and peaks. Computes them in one pass over the events.
    pub fn summary(&self) -> Summary {
        Summary::compute(self)
    }
}

impl Format {
    /// Returns a short stable name: `rmm-csv`, `pytorch-snapshot`, `capture`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RmmCsv => "rmm-csv",
            Self::PytorchSnapshot => "pytorch-snapshot",
            Self::Capture => "capture",
        }
    }

    /// Returns `true` if a refusal of `refused` bytes may belong to a request for `bytes` bytes.
    /// PyTorch records the rounded size of a refused request.
    fn is_refused_size(self, refused: u64, bytes: u64) -> bool {
        const PYTORCH_BLOCK: u64 = 512;
        match self {
            Self::RmmCsv | Self::Capture => refused == bytes,
            Self::PytorchSnapshot => {
                bytes.checked_next_multiple_of(PYTORCH_BLOCK) == Some(refused) || refused == bytes
            }
        }
    }

    fn records_threads(self) -> bool {
        match self {
            Self::RmmCsv | Self::Capture => true,
            Self::PytorchSnapshot => false,
        }
    }

    /// Returns `true` if the format records the end of a freed block's pending state.
    pub fn records_completion(self) -> bool {
        match self {
            Self::RmmCsv | Self::Capture => false,
            Self::PytorchSnapshot => true,
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
