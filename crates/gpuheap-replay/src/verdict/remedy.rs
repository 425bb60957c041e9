//! A remedy, and its kind.

use crate::PeakRange;

/// Something to do. Sizes are bytes.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Remedy {
    /// Kind of remedy.
    pub kind: RemedyKind,
    /// The pool, as `--pool` takes it; `None` for a limit.
    pub pool: Option<String>,
    /// The line to type.
    pub line: String,
    /// A line of Python that is needed as well.
    pub python: Option<String>,
    /// The most that is taken from the driver then; `None` if it stays as it is.
    pub reserved: Option<PeakRange>,
    /// How much less that is than the checked settings take on the same device; `None` if these do
    /// not get through there.
    pub saves: Option<u64>,
    /// Calls of the driver then.
    pub driver_calls: Option<u64>,
    /// Calls of the driver with the checked settings on the same device.
    pub driver_calls_before: Option<u64>,
    /// `true` if the pool is one of gpuheap's own.
    pub is_own_heap: bool,
    /// `true` if the figures are those of a model of a closed driver.
    pub is_closed_driver: bool,
}

/// Kind of remedy, cheapest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum RemedyKind {
    /// A setting of the framework that the program used.
    Setting,
    /// Another pool.
    Policy,
    /// A higher limit.
    Limit,
}

impl RemedyKind {
    /// Returns one word for it, as in the JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Setting => "setting",
            Self::Policy => "policy",
            Self::Limit => "limit",
        }
    }
}
