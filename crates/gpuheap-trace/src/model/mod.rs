//! The model that every format is read into: a list of events with identities resolved.

mod allocator;
mod builder;
mod ids;
mod keys;
mod stacks;
mod summary;
mod warning;

use std::fmt;
use std::sync::Arc;

pub use allocator::{AllocatorSettings, Segment};
pub use builder::{At, TraceBuilder};
pub(crate) use ids::next as next_number;
pub use keys::SnapshotKeys;
pub use stacks::Frame;
pub(crate) use stacks::{StackInterner, Stacks};
pub use summary::Summary;
pub(crate) use warning::Odd;
pub use warning::{Warning, WarningKind};

/// The allocation events of one device, in the order in which the file has them.
///
/// What a consumer may rely on:
/// * allocation numbers are `0..allocations()`, given in the order of the [`Op::Allocate`] events;
/// * every number is allocated once, then freed at most once, then its pending state ends at most
///   once;
/// * `stream`, `thread` and `stack` of an event index [`streams`](Self::streams),
///   [`threads`](Self::threads) (zero where the format has none) and [`stack`](Self::stack);
/// * times and event numbers never decrease.
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
    stacks: Arc<Stacks>,
    allocator: Option<AllocatorSettings>,
    keys: Option<SnapshotKeys>,
    segments: Vec<Segment>,
    /// An allocation, and the private pool of it and those after; by allocation.
    pools: Vec<(u32, Option<(u64, u64)>)>,
    /// Index of an event, and bytes; by index.
    device_free: Vec<(usize, u64)>,
    unknown_frees: u64,
    inferred_frees: u64,
    warnings: Vec<Warning>,
}

/// One thing that happened to device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// Nanoseconds since the first event that was recorded.
    pub time_ns: u64,
    /// Index into [`Trace::streams`].
    pub stream: u32,
    /// Index into [`Trace::threads`]; zero where the format records none.
    pub thread: u32,
    /// For [`Trace::stack`]; zero where none was recorded.
    pub stack: u32,
    /// Which of the file's events this is, counted from one as [`Summary::events`] counts them; of
    /// a log, the row after the header. What the file does not count has the number of the counted
    /// event that showed it or that was last before it; what happened before the recording has 0.
    pub number: u32,
    /// Kind of event.
    pub op: Op,
}

/// Kind of event. Sizes are bytes as the program requested them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// The program got memory. Zero bytes is a valid request.
    Allocate {
        /// The number of this allocation.
        allocation: u32,
        /// Bytes requested.
        bytes: u64,
    },
    /// The program gave memory back; from here on the block is no longer live. Where the file has
    /// no [`Op::FreeCompleted`] for it, the block may still be pending at the end.
    Free {
        /// The number of the allocation that ends.
        allocation: u32,
    },
    /// The streams that used a freed block got past it: pending ends. Only in formats that record
    /// it ([`Format::records_completion`]).
    FreeCompleted {
        /// The number of the allocation that was freed before.
        allocation: u32,
    },
    /// A request that could not be met. The program went on without it, or ended.
    Fail {
        /// Bytes requested. A PyTorch snapshot has them rounded up to the allocator's block size.
        bytes: u64,
    },
    /// A request that was refused, but met when the framework made it again: the stream's next
    /// [`Op::Allocate`] of the same thread. No failure.
    Retry {
        /// Bytes requested; of a PyTorch snapshot, rounded up to the allocator's block size.
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

/// A stream of the recorded program.
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
}

impl Trace {
    /// The name that the reader was given for the file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the format of the file.
    pub fn format(&self) -> Format {
        self.format
    }

    /// The device, as the recorded program counted them; `None` where the format does not say.
    pub fn device(&self) -> Option<u32> {
        self.device
    }

    /// All events, the reconstructed ones first.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// How many events at the start of [`events`](Self::events) stand for what happened before the
    /// recording began. They all have time zero.
    pub fn reconstructed_events(&self) -> usize {
        self.recorded_from
    }

    /// How many allocations there are, those before the recording included.
    pub fn allocations(&self) -> u32 {
        // The builder refuses to give out more numbers than fit.
        u32::try_from(self.addresses.len()).unwrap_or(u32::MAX)
    }

    /// The device address of each allocation as recorded. Addresses come back after a free, and
    /// allocations of zero bytes may share one.
    pub fn addresses(&self) -> &[u64] {
        &self.addresses
    }

    /// The streams, in the order in which they first appear.
    pub fn streams(&self) -> &[StreamInfo] {
        &self.streams
    }

    /// The threads as recorded, in the order in which they first appear; `None` where the format
    /// does not record them.
    pub fn threads(&self) -> Option<&[u64]> {
        self.threads.as_deref()
    }

    /// The frames of a stack, innermost first; empty for stack 0 and for a number that is not of
    /// this trace.
    pub fn stack(&self, stack: u32) -> impl ExactSizeIterator<Item = &Frame> {
        self.stacks.frames(stack)
    }

    /// Settings of the recorded allocator; `None` if the format does not say.
    pub fn allocator_settings(&self) -> Option<&AllocatorSettings> {
        self.allocator.as_ref()
    }

    /// Returns which keys the file lacks or has beside those of PyTorch 2.11; `None` if it is no
    /// PyTorch snapshot.
    pub fn snapshot_keys(&self) -> Option<&SnapshotKeys> {
        self.keys.as_ref()
    }

    /// Segments that the recorded allocator held at the end, by address. Empty if the format does
    /// not say, and with [`ReadOptions::recorded_only`](crate::ReadOptions::recorded_only).
    pub fn segments_at_end(&self) -> &[Segment] {
        &self.segments
    }

    /// Returns the private pool that an allocation was made from; `(0, 0)` is the common memory.
    /// `None` if the file does not say: PyTorch 2.11 does not, newer ones may.
    pub fn pool(&self, allocation: u32) -> Option<(u64, u64)> {
        let after = self.pools.partition_point(|&(first, _)| first <= allocation);
        self.pools.get(after.checked_sub(1)?)?.1
    }

    /// Returns how many bytes of the device were free, by the driver, when the request of the event
    /// with this index failed. `None` if the file does not say.
    pub fn device_free(&self, event: usize) -> Option<u64> {
        let at = self.device_free.binary_search_by_key(&event, |&(index, _)| index).ok()?;
        Some(self.device_free[at].1)
    }

    /// Frees in the file of blocks whose allocation is not in the trace. They are no events.
    pub fn unknown_frees(&self) -> u64 {
        self.unknown_frees
    }

    /// Frees among the events that the file does not have, but that must have happened, because the
    /// address was allocated again or the end of its pending state was recorded.
    pub fn inferred_frees(&self) -> u64 {
        self.inferred_frees
    }

    /// Returns oddities of the file that could still be read.
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// Counts and peaks, computed in one pass over the events.
    pub fn summary(&self) -> Summary {
        Summary::of(self)
    }
}

impl Format {
    /// A short stable name: `rmm-csv`, `pytorch-snapshot`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RmmCsv => "rmm-csv",
            Self::PytorchSnapshot => "pytorch-snapshot",
        }
    }

    /// Returns `true` if a refused request of `refused` bytes is one of `bytes` bytes, as the
    /// format has them: PyTorch writes down what it rounded a refused request to.
    fn is_refused_size(self, refused: u64, bytes: u64) -> bool {
        const PYTORCH_BLOCK: u64 = 512;
        match self {
            Self::RmmCsv => refused == bytes,
            Self::PytorchSnapshot => {
                bytes.checked_next_multiple_of(PYTORCH_BLOCK) == Some(refused) || refused == bytes
            }
        }
    }

    /// Returns `true` if the format records when a freed block stops being pending.
    pub fn records_completion(self) -> bool {
        match self {
            Self::RmmCsv => false,
            Self::PytorchSnapshot => true,
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
