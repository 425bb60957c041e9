//! Replays a [`Bench`] through one pool, on its device or on smaller and smaller devices.

use super::device::Machine;
use super::{
    Bench, Memory, Minimum, Pool, PoolReport, Progress, ReplayError, heaps, minimum, model,
};

impl Bench<'_> {
    pub(crate) fn measure(&self, pool: &Pool) -> Result<PoolReport, ReplayError> {
        match pool {
            Pool::Own(kind) => {
                heaps::measure(self, *kind).map_err(|error| self.failed(pool, &error))
            }
            Pool::Model(text) => model::measure(self, text, self.memory()),
        }
    }

    pub(crate) fn find_minimum(
        &self,
        report: &PoolReport,
        progress: &dyn Progress,
    ) -> Result<Minimum, ReplayError> {
        let known = match &report.stop {
            None => Some(report.peak_reserved.high),
            Some(_) => None,
        };
        let find = |attempt: &dyn Fn(u64) -> Result<Result<u64, String>, ReplayError>| {
            minimum::find(minimum::STEP, self.peak_live, known, progress, attempt)
        };
        match (&report.pool, &self.machine) {
            (Pool::Own(_), Machine::Real(_)) => {
                Ok(Minimum::Never("a real device has the size that it has".to_owned()))
            }
            (Pool::Own(kind), _) => find(&|bytes| {
                heaps::attempt(self, *kind, bytes)
                    .map_err(|error| self.failed(&report.pool, &error))
            }),
            (Pool::Model(text), _) => find(&|bytes| {
                let limit = self.limit.map(|limit| limit.to_bytes(bytes));
                model::attempt(self, text, Memory { total: bytes, usable: bytes, limit })
            }),
        }
    }

    fn failed(&self, pool: &Pool, error: &gpuheap::Error) -> ReplayError {
        ReplayError::Device(format!("{}, pool {pool}: {error}", self.trace.name()))
    }
}
