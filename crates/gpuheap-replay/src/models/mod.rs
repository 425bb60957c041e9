//! Models of allocators, behind one trait.

mod addresses;
mod books;
pub mod cuda;
pub mod cupy;
pub mod rmm;
mod spans;
mod spec;
pub mod torch;
pub(crate) mod words;

use std::fmt;

pub use books::Books;
pub use spec::{NAMES, build};

/// An allocator that decides like the one it is named after.
///
/// A model is deterministic: the same calls give the same answers. No call panics or blocks.
pub trait Model {
    /// Returns the allocator's name and settings, as a user would type them.
    fn name(&self) -> String;

    /// Hands out memory for `request`.
    ///
    /// # Errors
    /// If the allocator itself would have reported that it ran out of memory.
    fn allocate(&mut self, request: Request) -> Result<Ticket, Box<Refusal>>;

    /// Frees a block at the moment when the program freed it, on `stream`. The block is pending
    /// until [`complete`](Self::complete). A ticket that is not live is ignored.
    fn free(&mut self, ticket: Ticket, stream: u64);

    /// Gives unused memory back because the program asked for it, as `torch.cuda.empty_cache()`
    /// does. Without effect in allocators that have no such call.
    fn empty_cache(&mut self) {}

    /// Returns whether `bytes` can be taken from the driver with nothing given back before. True in
    /// allocators that do not say.
    fn has_room(&self, _bytes: u64) -> bool {
        true
    }

    /// Returns the books that the model keeps.
    fn books(&self) -> &Books;

    /// Ends the pending state of a freed block: all streams that used the block got past it. A
    /// ticket that is not pending is ignored. Without effect in allocators that hand a freed block
    /// out at once.
    fn complete(&mut self, _ticket: Ticket) {}

    /// Returns what the allocator holds and what it did so far.
    fn figures(&self) -> Figures {
        self.books().figures
    }

    /// Returns what was taken from the driver and given back to it, in order.
    fn driver_events(&self) -> &[DriverEvent] {
        &self.books().events
    }
}

/// A request for memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Bytes as the program requested them.
    pub bytes: u64,
    /// The stream's handle; 0 is the default stream.
    pub stream: u64,
    /// The private pool that the request belongs to; 0 is the allocator's common memory.
    pub pool: u32,
}

/// A block that a model handed out. Once the block is handed out anew, older tickets are ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ticket {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

impl Ticket {
    /// No block: freeing it does nothing.
    pub const NONE: Self = Self { slot: u32::MAX, generation: 0 };
}

/// Figures of a model: bytes that it holds, and calls that it made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Figures {
    /// Taken from the driver.
    pub reserved: u64,
    /// The most that was ever taken from the driver at one time.
    pub peak_reserved: u64,
    /// In blocks of the program, rounded as the allocator rounds.
    pub allocated: u64,
    /// In blocks of the program and in blocks that are freed but pending.
    pub active: u64,
    /// The most that was ever active at one time.
    pub peak_active: u64,
    /// In blocks of the program, as requested.
    pub requested: u64,
    /// Free, in pieces of segments that are in use elsewhere.
    pub inactive_split: u64,
    /// Segments that are held, without those that grow in place.
    pub segments: u64,
    /// Calls of the driver that took memory or gave it back.
    pub driver_calls: u64,
    /// Requests that were tried again after all unused memory was given back.
    pub retries: u64,
    /// Requests that failed.
    pub failures: u64,
}

/// Memory that a model took from the driver or gave back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DriverEvent {
    /// `true` if memory was taken and not given back.
    pub is_taken: bool,
    /// Bytes.
    pub bytes: u64,
    /// The stream that the memory is for.
    pub stream: u64,
    /// Address in the model's own device.
    pub address: u64,
}

/// Why a request failed. Sizes are bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusal {
    /// The request.
    pub request: Request,
    /// Bytes that the request needed from the driver.
    pub needed: u64,
    /// Bytes that the allocator was allowed to reserve.
    pub allowed: u64,
    /// The largest free block of the request's stream that was not large enough.
    pub largest_free: u64,
    /// Freed, but still used by other streams.
    pub pending: u64,
    /// Figures at that moment.
    pub figures: Figures,
}

/// Why a text is not a setting of an allocator: what is wrong with it, and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingError {
    what: String,
    advice: String,
}

impl SettingError {
    pub(crate) fn new(what: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { what: what.into(), advice: advice.into() }
    }

    /// Returns what is wrong, with the text that was given.
    pub fn what(&self) -> &str {
        &self.what
    }

    /// Returns what to do about it.
    pub fn advice(&self) -> &str {
        &self.advice
    }
}

impl fmt::Display for SettingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.what, self.advice)
    }
}

impl std::error::Error for SettingError {}
