//! Streams and frees as a heap names them.

/// The driver's handle for a stream, a number of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct StreamHandle(pub usize);

impl StreamHandle {
    /// The calling thread's own default stream, under one handle on every thread.
    pub const PER_THREAD: StreamHandle = StreamHandle(2);
}

/// A stream as a heap knows it: by the driver's id for it, never by its handle alone, because
/// handles are recycled and a per-thread default stream has one handle for many streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamRef {
    pub(crate) slot: u32,
    /// Number of streams that had the slot before.
    pub(crate) turn: u32,
    pub(crate) raw: StreamHandle,
}

impl StreamRef {
    /// The stream with that [number](StreamRef::number) and that handle.
    pub fn new(number: u64, raw: StreamHandle) -> StreamRef {
        StreamRef { slot: number as u32, turn: (number >> 32) as u32, raw }
    }

    /// Its place in the heap's table of streams, with how many had that place before in the upper half.
    pub fn number(self) -> u64 {
        u64::from(self.turn) << 32 | u64::from(self.slot)
    }

    /// Its place in the heap's table of streams.
    pub fn slot(self) -> usize {
        self.slot as usize
    }

    /// The driver's handle for it.
    pub fn raw(self) -> StreamHandle {
        self.raw
    }
}

/// One free: the stream on which it happened and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    /// The stream's place in the heap's table of streams.
    pub(crate) slot: u32,
    /// Counts the stream's frees, from 1.
    pub number: u64,
}

impl Ticket {
    /// The ticket of that stream and number.
    pub fn new(slot: u32, number: u64) -> Ticket {
        Ticket { slot, number }
    }

    /// The stream's place in the heap's table of streams.
    pub fn slot(self) -> usize {
        self.slot as usize
    }
}
