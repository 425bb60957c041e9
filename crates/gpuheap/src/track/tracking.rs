//! Levels of detail that are recorded for each outstanding allocation.

use gpuheap_pool::{named, parsed_by_name};
use serde::Serialize;

named! {
    /// Amount of detail recorded for each outstanding allocation.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
    #[serde(rename_all = "snake_case")]
    #[non_exhaustive]
    pub enum Tracking {
        /// No record.
        #[default]
        Off = "off",
        /// The allocating line, the thread and the time.
        Counts = "counts",
        /// The allocating line, the thread, the time and the whole stack.
        Backtraces = "backtraces",
    }
}

parsed_by_name! {
    Tracking,
    /// A name that no tracking has. The error's text lists the names.
    UnknownTracking,
    "is not a kind of tracking; write"
}
