//! Functions of the program that the emulator calls.

use gpuheap_driver::{CUhostFn, CUstreamCallback};

use crate::state::clock::Clock;

#[derive(Clone)]
pub(crate) struct Callback {
    pub(crate) function: HostFunction,
    /// The caller's data, as an address.
    pub(crate) data: u64,
    /// Clock of all that happened before the callback, for the checks.
    pub(crate) clock: Option<Box<Clock>>,
}

#[derive(Clone, Copy)]
pub(crate) enum HostFunction {
    Plain(CUhostFn),
    /// A callback that gets the stream's handle and status.
    WithStatus(CUstreamCallback, usize),
}
