//! Cards that a program fits on.

use crate::cards::{self, Card};
use crate::replay::{Bench, Memory, ReplayError, attempt, attempt_torch, torch_settings};

/// Card, and the change that a program needs to fit on that card.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Fit {
    /// The card.
    pub card: &'static Card,
    /// First [`Way`] by which the program fits; `None` if it does not fit by any that was tried.
    pub way: Option<Way>,
}

/// Change that a program needs on a card.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Way {
    /// No change.
    AsIs,
    /// Another pool, as `--pool` takes it.
    With(String),
}

/// Maximum number of pools that are tried, the program's own pool included.
const WAYS: usize = 3;

/// Finds for each card how the program fits. `main` is the pool that the program uses, if it is
/// known. `others` are pools that the program could use by a setting, cheapest first.
///
/// Bisects the cards' sizes: if memory does not run out with a pool on one card, the pool is
/// assumed to be enough on all larger cards.
pub(super) fn find(
    bench: &Bench<'_>,
    main: Option<&str>,
    others: &[String],
) -> Result<Vec<Fit>, ReplayError> {
    let as_is = main.map(|pool| (Way::AsIs, pool.to_owned()));
    let others = others.iter().map(|pool| (Way::With(pool.clone()), pool.clone()));
    let ways: Vec<(Way, String)> = as_is.into_iter().chain(others).take(WAYS).collect();
    let mut found = Vec::new();
    for (_, pool) in &ways {
        found.push(smallest(bench, pool)?);
    }
    let way_on = |card: &'static Card| {
        let enough = |least: &Option<u64>| least.is_some_and(|least| card.usable_bytes >= least);
        let possible = |pool: &str| card.vmm || !pool.contains("expandable_segments:True");
        let mut ways = ways.iter().zip(&found);
        let first = ways.find(|((_, pool), least)| enough(least) && possible(pool));
        first.map(|((way, _), _)| way.clone())
    };
    Ok(cards::all().iter().map(|card| Fit { card, way: way_on(card) }).collect())
}

/// Returns the usable memory of the smallest card that is enough for the program with the pool.
fn smallest(bench: &Bench<'_>, pool: &str) -> Result<Option<u64>, ReplayError> {
    let mut sizes: Vec<(u64, u64)> =
        cards::all().iter().map(|card| (card.usable_bytes, card.total_bytes)).collect();
    sizes.sort_unstable();
    sizes.dedup_by_key(|(usable, _)| *usable);
    sizes.retain(|(usable, _)| *usable >= bench.peak_live);
    let settings = torch_settings(bench, pool)?.map(|settings| settings.without_limit());
    let gets_through = |(usable, total): (u64, u64)| {
        let memory = Memory { total, usable, limit: None };
        match &settings {
            Some(settings) => Ok(attempt_torch(bench, settings, memory).is_some()),
            None => attempt(bench, pool, memory).map(|result| result.is_ok()),
        }
    };
    let (mut low, mut high) = (0, sizes.len());
    while low < high {
        let middle = usize::midpoint(low, high);
        if gets_through(sizes[middle])? {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    Ok(sizes.get(low).map(|(usable, _)| *usable))
}
