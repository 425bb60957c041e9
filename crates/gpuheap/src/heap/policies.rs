//! Policies with their sources.

use std::sync::Arc;

use gpuheap_pool::{MemorySource, Policy, PoolKind, Tuning, new_policy};

use crate::device::Context;
use crate::kind::MemoryKind;
use crate::source::PlainSource;

/// A policy and the source of its memory.
pub(crate) type Parts = (Box<dyn Policy>, Box<dyn MemorySource>);

/// Returns the pool that a heap with `pool` has for a kind of memory. Only device memory has
/// virtual memory and stream-ordered pools of the driver, so `stitched` and `driver` heaps use
/// `split` for their other kinds of memory.
pub(crate) fn pool_for(kind: MemoryKind, pool: PoolKind) -> PoolKind {
    match pool {
        PoolKind::Stitched | PoolKind::Driver if kind != MemoryKind::Device => PoolKind::Split,
        pool => pool,
    }
}

/// Makes a policy for plain allocations of a kind, and returns its pool: [`pool_for`] the kind, but
/// `split` for `stitched` on a device without virtual memory.
pub(crate) fn policy_and_source(
    context: &Arc<Context>,
    kind: MemoryKind,
    pool: PoolKind,
    tuning: Tuning,
) -> (PoolKind, Parts) {
    let mut source = PlainSource::new(context.clone(), kind);
    let pool = match pool_for(kind, pool) {
        PoolKind::Stitched if source.pages().is_none() => PoolKind::Split,
        pool => pool,
    };
    (pool, (new_policy(pool, tuning), Box::new(source)))
}
