//! Models of allocators, behind one trait.

mod addresses;
mod books;
pub mod cuda;
pub mod cupy;
pub mod rmm;
mod spans;
mod spec;
pub mod torch;

use std::fmt;

pub use books::Books;
pub(crate) use spec::name_of;
pub use spec::{NAMES, build};

use crate::text::{distance, quoted};

/// Model of an allocator. It follows the rules of the allocator that it is named after.
///
/// A model is deterministic: equal calls give equal results. No call panics or blocks.
pub trait Model {
    /// Returns the allocator's name and settings, as a user would type them.
    fn name(&self) -> String;

    /// Hands out memory for `request`. A request of zero bytes gets no block.
    ///
    /// # Errors
    /// Returns a refusal if the allocator itself would report that memory ran out.
    fn allocate(&mut self, request: Request) -> Result<Ticket, Box<Refusal>> {
        if request.bytes == 0 { Ok(Ticket::NONE) } else { self.serve(request) }
    }

    /// Hands out memory for a request of at least one byte. [`allocate`](Self::allocate) calls it.
    ///
    /// # Errors
    /// Returns a refusal if the allocator itself would report that memory ran out.
    fn serve(&mut self, request: Request) -> Result<Ticket, Box<Refusal>>;

    /// Frees a block on `stream`. The block is pending until [`complete`](Self::complete). Ignores
    /// a ticket that is not live.
    fn free(&mut self, ticket: Ticket, stream: u64);

    /// Gives unused memory back at the program's request, as `torch.cuda.empty_cache()` does. Has
    /// no effect in allocators without such a call.
    fn empty_cache(&mut self) {}

    /// Returns `true` if `bytes` can be taken from the driver without giving memory back first.
    /// Always `true` in allocators that do not implement this method.
    fn has_room(&self, _bytes: u64) -> bool {
        true
    }

    /// Returns the model's figures, and the list of its driver calls.
    fn books(&self) -> &Books;

    /// Ends the pending state of a freed block, because all streams have completed their work on
    /// the block. Ignores a ticket that is not pending. Has no effect in allocators that reuse a
    /// freed block immediately.
    fn complete(&mut self, _ticket: Ticket) {}

    /// Returns the allocator's figures: bytes held now and at the peak, and calls so far.
    fn figures(&self) -> Figures {
        self.books().figures
    }

    /// Returns the segments that were taken from the driver and given back, in order.
    fn driver_events(&self) -> &[DriverEvent] {
        &self.books().events
    }
}

/// A request for memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Bytes, as the program requested them.
    pub bytes: u64,
    /// The stream's handle; 0 is the default stream.
    pub stream: u64,
    /// Private pool of the request; 0 if the request has none.
    pub pool: u32,
}

/// Identifier of one use of a block. A free with the ticket of an earlier use is ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ticket {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

impl Ticket {
    /// Ticket of no block. Freeing this ticket has no effect.
    pub const NONE: Self = Self { slot: u32::MAX, generation: 0 };
}

/// Counts of an allocator's model: bytes and segments held, driver calls, retries and failures.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Figures {
    /// Bytes taken from the driver.
    pub reserved: u64,
    /// Peak of `reserved`.
    pub peak_reserved: u64,
    /// Bytes in blocks of the program, rounded as the allocator rounds.
    pub allocated: u64,
    /// Bytes in blocks of the program, and in freed blocks that are pending.
    pub active: u64,
    /// Peak of `active`.
    pub peak_active: u64,
    /// Bytes in blocks of the program, as requested.
    pub requested: u64,
    /// Free bytes in segments that are partly in use.
    pub inactive_split: u64,
    /// Number of segments held. Segments that grow in place do not count.
    pub segments: u64,
    /// Number of driver calls that took memory or gave it back.
    pub driver_calls: u64,
    /// Number of requests that were tried again after all unused memory was given back.
    pub retries: u64,
    /// Number of requests that failed.
    pub failures: u64,
}

/// Memory that a model took from the driver or gave back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DriverEvent {
    /// `true` if the memory was taken, `false` if it was given back.
    pub is_taken: bool,
    /// Bytes.
    pub bytes: u64,
    /// The stream that the memory is for.
    pub stream: u64,
    /// Address of the memory, in the model or in the recording.
    pub address: u64,
}

/// Reason for the failure of a request. Sizes are bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusal {
    /// The request.
    pub request: Request,
    /// Bytes that the request needed from the driver.
    pub needed: u64,
    /// Bytes that the allocator was allowed to reserve.
    pub allowed: u64,
    /// Largest free block of the request's stream. It was too small.
    pub largest_free: u64,
    /// Freed bytes that other streams still use.
    pub pending: u64,
    /// Figures at the failure.
    pub figures: Figures,
}

/// Error in the settings of an allocator. It states the problem and the remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingError {
    what: String,
    advice: String,
}

impl SettingError {
    pub(crate) fn new(what: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { what: what.into(), advice: advice.into() }
    }

    pub(super) fn unknown(what: &str, name: &str, known: &[&str]) -> Self {
        // A word is near if at most half of its letters differ.
        let letters = name.chars().count();
        let is_part = |known: &str| letters >= 3 && known.contains(name);
        let is_near = |known: &&&str| is_part(known) || distance(name, known) * 2 <= letters;
        let near = known.iter().filter(is_near);
        let nearest = near.min_by_key(|known| (!is_part(known), distance(name, known)));
        Self::new(
            format!("{what} {}", quoted(name)),
            match nearest {
                Some(nearest) => format!("the nearest known one is {nearest}"),
                None if known.is_empty() => "leave it out".to_owned(),
                None => format!("known are {}", known.join(", ")),
            },
        )
    }

    /// Returns a description of the invalid setting. The description quotes the user's text.
    pub fn what(&self) -> &str {
        &self.what
    }

    /// Returns the remedy.
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
