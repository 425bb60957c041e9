//! Ways in which an array's memory is freed while handles to it exist.

use std::panic::Location;

/// Way in which an array's memory was freed while handles to it existed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Freed {
    /// By `free_early` at this line.
    Early(&'static Location<'static>),
    /// At the end of the scope that began at this line.
    Scope(&'static Location<'static>),
    /// At the end of its batch's turn; the batches were made at this line.
    Batch(&'static Location<'static>),
}
