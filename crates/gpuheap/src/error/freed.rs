//! How memory was freed before its handles.

use std::panic::Location;

/// How an array's memory came to be freed while there were handles to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Freed {
    /// By `free_early` at this place.
    Early(&'static Location<'static>),
    /// At the end of the scope that began at this place.
    Scope(&'static Location<'static>),
    /// When the turn of its batch ended, of those that were asked for at this place.
    Batch(&'static Location<'static>),
}
