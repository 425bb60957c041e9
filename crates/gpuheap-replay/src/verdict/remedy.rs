//! A remedy, and its kind.

use crate::PeakRange;

/// Remedy for a program. Sizes are bytes.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Remedy {
    /// Kind of remedy.
    pub kind: RemedyKind,
    /// The pool, as `--pool` takes it; `None` if the remedy is a higher limit or more memory.
    pub pool: Option<String>,
    /// The line to type.
    pub line: String,
    /// Line of Python that the program needs in addition to `line`.
    pub python: Option<String>,
    /// Peak of bytes taken from the driver with the remedy; `None` if it does not change.
    pub reserved: Option<PeakRange>,
    /// Bytes by which `reserved` is below the peak without the remedy. `None` if that peak is lower
    /// or not known, for example because memory runs out.
    pub saves: Option<u64>,
    /// Number of driver calls with the remedy.
    pub driver_calls: Option<u64>,
    /// Number of driver calls without the remedy, if it is known.
    pub driver_calls_before: Option<u64>,
    /// `true` if the pool is one of gpuheap's own pools.
    pub is_own_heap: bool,
    /// `true` if the figures come from a model of a closed-source driver.
    pub is_closed_driver: bool,
}

impl Remedy {
    /// Returns a remedy that changes no figure.
    pub(super) fn new(kind: RemedyKind, pool: Option<String>, line: impl Into<String>) -> Self {
        Self {
            kind,
            pool,
            line: line.into(),
            python: None,
            reserved: None,
            saves: None,
            driver_calls: None,
            driver_calls_before: None,
            is_own_heap: false,
            is_closed_driver: false,
        }
    }
}

/// Kind of remedy, cheapest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum RemedyKind {
    /// A setting of the recorded program's framework, such as PyTorch.
    Setting,
    /// Another pool.
    Policy,
    /// A higher limit.
    Limit,
}

impl RemedyKind {
    /// Returns the word that names the kind in the JSON report.
    pub fn name(self) -> &'static str {
        match self {
            Self::Setting => "setting",
            Self::Policy => "policy",
            Self::Limit => "limit",
        }
    }
}
