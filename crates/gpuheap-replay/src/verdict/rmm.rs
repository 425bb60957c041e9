//! RMM's resources as remedies.

use super::{Remedy, RemedyKind, exactly};
use crate::replay::minimum::LARGEST;
use crate::replay::{Bench, Pool};
use crate::tune::{Candidate, Family, search};

/// A resource that gets through on some device.
pub(super) struct Resource {
    pub(super) candidate: Candidate,
    /// `true` if it gets through on the device of the replay.
    passes: bool,
}

/// Resources that get through on the device, least memory first; if none does, those that get
/// through on a device of any size.
pub(super) fn resources(bench: &Bench<'_>) -> Vec<Resource> {
    let mut budget = bench.budget();
    for passes in [true, false] {
        let found = search(&bench.program, Family::Rmm, &budget, |_, _| {});
        let found = found.into_iter().filter(|one| !one.fails);
        let found: Vec<_> = found.map(|candidate| Resource { candidate, passes }).collect();
        if !found.is_empty() {
            return found;
        }
        (budget.device_memory, budget.usable_memory) = (LARGEST, LARGEST);
    }
    Vec::new()
}

/// The resource that needs the least, and the first one that calls the driver rarely.
pub(super) fn remedies(resources: &[Resource]) -> Vec<Remedy> {
    let is_slow = |resource: &Resource| {
        let model = &resource.candidate.model;
        model == "cuda" || model.starts_with("rmm:binning")
    };
    let rare = resources.iter().position(|resource| !is_slow(resource));
    let second = match rare {
        Some(0) => 1,
        Some(at) => at,
        None => 1,
    };
    let shown = resources.iter().take(1).chain(resources.get(second));
    shown.filter(|resource| resource.passes).map(Resource::remedy).collect()
}

/// The memory that the resource with the least needs.
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
    fn remedy(&self) -> Remedy {
        let Candidate { model, setting, reserved_peak, driver_calls, .. } = &self.candidate;
        Remedy {
            kind: RemedyKind::Policy,
            pool: Some(model.clone()),
            line: format!("import rmm; {setting}"),
            reserved: Some(exactly(*reserved_peak)),
            saves: None,
            driver_calls: Some(*driver_calls),
            driver_calls_before: None,
            is_own_heap: false,
            is_closed_driver: Pool::Model(model.clone()).is_closed_driver(true),
        }
    }
}
