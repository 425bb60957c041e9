//! RMM's resources as remedies.

use super::{Remedy, RemedyKind};
use crate::PeakRange;
use crate::replay::minimum::LARGEST;
use crate::replay::{Bench, Pool};
use crate::tune::{Candidate, Family, search};

/// Memory resource of RMM with which the program fits on the replay's device or on a larger one.
pub(super) struct Resource {
    pub(super) candidate: Candidate,
    /// `true` if the program does not run out of memory on the device of the replay.
    passes: bool,
}

/// Returns the resources with which the program does not run out of memory on the device. Resources
/// that rarely call the driver come first, then RMM's default and others that call the driver
/// often. Each group is ordered by memory, least first.
///
/// If the program runs out of memory with each resource, returns the resources that are enough on
/// the largest device that is tried, least memory first.
pub(super) fn resources(bench: &Bench<'_>) -> Vec<Resource> {
    let mut budget = bench.budget();
    for passes in [true, false] {
        let found = search(&bench.program, Family::Rmm, &budget, |_, _| {});
        let found = found.into_iter().filter(|one| !one.fails);
        let mut found: Vec<_> = found.map(|candidate| Resource { candidate, passes }).collect();
        if passes {
            found.sort_by_key(Resource::calls_often);
        }
        if !found.is_empty() {
            return found;
        }
        (budget.device_memory, budget.usable_memory) = (LARGEST, LARGEST);
    }
    Vec::new()
}

/// Returns at most two resources of RMM as remedies: the first, and one that calls the driver
/// often. If no other resource calls the driver often, returns the first two.
pub(super) fn remedies(resources: &[Resource]) -> Vec<Remedy> {
    let others = || resources.iter().skip(1);
    let second = others().find(|resource| resource.calls_often()).or(others().next());
    let shown = resources.iter().take(1).chain(second);
    shown.filter(|resource| resource.passes).map(Resource::remedy).collect()
}

/// Returns a remedy that advises as much memory as the first of `resources` needs.
pub(super) fn limit(bench: &Bench<'_>, resources: &[Resource]) -> Option<Remedy> {
    let least = resources.first()?;
    let more = match bench.memory().limit {
        Some(_) => "a higher limit",
        None => "more memory",
    };
    Some(Remedy {
        kind: RemedyKind::Limit,
        pool: None,
        line: format!("{more}, with {}", least.candidate.model),
        is_closed_driver: false,
        ..least.remedy()
    })
}

impl Resource {
    /// Returns `true` if the resource calls the driver for each block, or at least for large
    /// blocks.
    fn calls_often(&self) -> bool {
        let model = &self.candidate.model;
        model == "cuda" || model.starts_with("rmm:binning")
    }

    fn remedy(&self) -> Remedy {
        let Candidate { model, setting, reserved_peak, driver_calls, .. } = &self.candidate;
        Remedy {
            reserved: Some(PeakRange::exact(*reserved_peak)),
            driver_calls: Some(*driver_calls),
            is_closed_driver: Pool::Model(model.clone()).is_closed_driver(true),
            ..Remedy::new(RemedyKind::Policy, Some(model.clone()), format!("import rmm; {setting}"))
        }
    }
}
