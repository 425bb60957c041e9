#![forbid(unsafe_code)]

//! Policies, stream order, statistics and limits of gpuheap's heaps.
//!
//! | | |
//! |---|---|
//! | [`Policy`], [`PoolKind`] | how cached blocks are kept, found and given back |
//! | [`Order`], [`Ticket`], [`Stuck`] | which stream may reuse which block, after which fence |
//! | [`Moments`], [`Completed`] | work that the program's own waits show to be completed |
//! | [`RunningStats`], [`AllocStats`] | bytes and counts handed out, taken and given back |
//! | [`Limits`] | bounds on the bytes taken from the driver |
//! | [`MemorySource`], [`Pages`] | source of memory: the driver in gpuheap, a model in tests |
//!
//! Nothing here calls a driver, starts a thread or reads the environment.
//!
//! # Stability
//!
//! This crate has no stable interface: it is a part of `gpuheap`. `gpuheap` re-exports the items
//! that its users need.

mod order;
mod pool;
mod progress;
mod source;
mod stats;
mod stream;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use order::{Candidates, Order, StreamGuard};
pub use pool::{
    Binned, BlockRef, CacheRules, Cached, Direct, Environment, Forecast, Granted, Headroom, Held,
    Outlook, Policy, PoolKind, Request, Rounding, Served, Shortage, Simple, Stitched, Taking,
    Tuning, UnknownPool, new_policy,
};
pub use progress::{Completed, Moments};
pub use source::{
    Chunk, DriverFailure, Fence, GRANULE, Gone, Limits, MemorySource, Pages, Segment, SourceError,
    SourceResult, Waiter, round_up,
};
pub use stats::{AllocStats, Moved, RunningStats};
pub use stream::{StreamHandle, StreamRef, Stuck, Ticket};
