//! A policy decides how cached blocks are kept, found and given back.
//!
//! | name | keeps | finds |
//! |---|---|---|
//! | [`none`](PoolKind::None) | nothing | the driver, every time |
//! | [`simple`](PoolKind::Simple) | blocks as they were taken | the first block that is not too large |
//! | [`binned`](PoolKind::Binned) | powers of two up to 128 MiB | the last block freed in the bin |
//! | [`split`](PoolKind::Split) | segments, split and coalesced | the smallest range that fits |
//! | [`stitched`](PoolKind::Stitched) | pages at reserved addresses | the smallest range that fits, else maps pages into one |
//! | [`driver`](PoolKind::Driver) | memory in a pool of the driver | as the driver does |
//!
//! A policy manages block descriptors. It reaches the driver only through its [`Environment`], so
//! each policy is tested without a driver.

mod binned;
mod direct;
mod environment;
mod free_list;
mod kind;
mod policy;
mod simple;
mod slot_map;
mod stitched;
#[cfg(test)]
mod tests;

pub use binned::Binned;
pub use direct::Direct;
pub use environment::{Environment, Headroom, Shortage};
pub use kind::{CacheRules, PoolKind, Rounding, UnknownPool};
pub use policy::{
    BlockRef, Cached, Forecast, Granted, Held, Outlook, Policy, Request, Served, Taking,
};
pub use simple::Simple;
pub use stitched::{Stitched, Tuning};

/// Makes a policy of the kind `pool` that holds no memory.
pub fn new_policy(pool: PoolKind, tuning: Tuning) -> Box<dyn Policy> {
    match pool {
        PoolKind::None | PoolKind::Driver => Box::new(Direct::default()),
        PoolKind::Simple => Box::new(Simple::default()),
        PoolKind::Binned => Box::new(Binned::default()),
        PoolKind::Split => Box::new(Stitched::in_segments()),
        PoolKind::Stitched => Box::new(Stitched::with(tuning)),
    }
}
