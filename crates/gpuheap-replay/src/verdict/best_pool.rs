//! Choice among pools that get through.

use crate::replay::{Bench, PoolReport};

/// Returns the pool that gets through with the least memory. Of pools within 5 % of it, returns the
/// one with the fewest driver calls. Pools that call the driver for each block, and models of a
/// closed driver, come last.
pub(super) fn best_pool<'r>(
    bench: &Bench<'_>,
    results: &'r [PoolReport],
    is_asked: impl Fn(&PoolReport) -> bool,
) -> Option<&'r PoolReport> {
    let is_emulated = bench.device.is_emulated;
    let rank = |result: &PoolReport| {
        (result.pool.is_closed_driver(is_emulated), !result.pool.is_caching())
    };
    let passed = || results.iter().filter(|result| result.gets_through() && is_asked(result));
    // A pool that falls back to another kind is left out: that kind is advised by its own name.
    let passed = || passed().filter(|result| result.fallback.is_none() || results.len() == 1);
    let first = passed().map(rank).min()?;
    let group = || passed().filter(|result| rank(result) == first);
    let least = group().map(|result| result.peak_reserved.high).min()?;
    let margin = least.saturating_add(least / 20);
    group()
        .filter(|result| result.peak_reserved.high <= margin)
        .min_by_key(|result| (result.driver_calls, result.peak_reserved.high))
}
