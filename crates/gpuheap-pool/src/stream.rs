//! Identifies streams and frees within a heap.

/// Handle of a stream. For a thread's own default stream, this is the thread's number; for any
/// other stream, the driver's handle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct StreamHandle(pub usize);

impl StreamHandle {
    /// Bit that marks the number of a thread. No handle of the driver has this bit set, because
    /// handles are small numbers or addresses of the process.
    const THREAD: usize = 1 << (usize::BITS - 1);

    /// Returns the handle of a thread's own default stream. The driver uses the same handle for
    /// these streams on every thread, so that handle does not identify the stream.
    pub fn from_thread(number: u64) -> StreamHandle {
        StreamHandle(number as usize | StreamHandle::THREAD)
    }

    /// If this is a thread's own default stream, returns the thread's number, else `None`.
    pub fn thread(self) -> Option<u64> {
        let marked = self.0 & StreamHandle::THREAD != 0;
        marked.then_some((self.0 & !StreamHandle::THREAD) as u64)
    }
}

/// A stream within a heap, identified by the driver's id of the stream. A handle does not identify
/// it: handles are recycled, and a per-thread default stream has one handle for many streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamRef {
    pub(crate) slot: u32,
    /// Number of streams that used the slot before.
    pub(crate) generation: u32,
    pub(crate) raw: StreamHandle,
}

impl StreamRef {
    /// Returns the stream with a [number](StreamRef::number) and a handle.
    #[inline]
    pub fn new(number: u64, raw: StreamHandle) -> StreamRef {
        StreamRef { slot: number as u32, generation: (number >> 32) as u32, raw }
    }

    /// Returns the stream's number. The lower half is its slot, and the upper half is the number of
    /// earlier streams in that slot.
    #[inline]
    pub fn number(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.slot)
    }

    /// Returns the stream's slot in the heap's table of streams.
    #[inline]
    pub fn slot(self) -> usize {
        self.slot as usize
    }

    /// Returns the driver's handle of the stream.
    #[inline]
    pub fn raw(self) -> StreamHandle {
        self.raw
    }
}

/// Ticket of one free: the slot of its stream, and the number of the free on that stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    /// Slot of the stream in the heap's table of streams.
    pub(crate) slot: u32,
    /// Number of the free on its stream, from 1.
    pub number: u64,
}

impl Ticket {
    /// Returns the ticket of the free with this number on the stream in `slot`.
    #[inline]
    pub fn new(slot: u32, number: u64) -> Ticket {
        Ticket { slot, number }
    }

    /// Returns the slot of the stream in the heap's table of streams.
    #[inline]
    pub fn slot(self) -> usize {
        self.slot as usize
    }
}

/// Stuck frees: no wait can complete them now. An example is an unfenced free on a stream that is
/// capturing a graph. No other stream can use the memory before the capture ends.
#[derive(Debug, Default)]
pub struct Stuck {
    /// Slot of each stream with stuck frees, and the number of its last free that is not stuck.
    streams: Vec<(usize, u64)>,
}

impl Stuck {
    /// Adds the stuck frees of one stream: all frees after number `waitable`, the last free that a
    /// wait can complete.
    pub fn add(&mut self, slot: usize, waitable: u64) {
        self.streams.push((slot, waitable));
    }

    /// Returns `true` if no free is stuck.
    pub fn is_empty(&self) -> bool {
        self.streams.is_empty()
    }

    /// Returns `true` if the free with this ticket is stuck: no wait can complete it now.
    pub fn holds(&self, ticket: Ticket) -> bool {
        let is_after =
            |(slot, waitable): &(usize, u64)| *slot == ticket.slot() && ticket.number > *waitable;
        self.streams.iter().any(is_after)
    }
}
