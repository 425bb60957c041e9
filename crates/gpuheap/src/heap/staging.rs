//! The setting for how large copies of pageable memory are staged.

use std::sync::OnceLock;
use std::thread;

/// How copies are staged. For benches and tests: programs need not choose.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Staging {
    /// At most so many threads copy, the calling one among them.
    pub threads: usize,
    /// Bytes that a slot holds.
    pub piece: usize,
    /// Slots of each thread: one is written while the others are read.
    pub slots: usize,
    /// Copies of fewer bytes go the driver's way.
    pub threshold: usize,
}

/// Eight cores copy what the link of an H200 takes.
const THREADS: usize = 8;

impl Default for Staging {
    fn default() -> Staging {
        static CORES: OnceLock<usize> = OnceLock::new();
        let cores = *CORES.get_or_init(|| thread::available_parallelism().map_or(1, usize::from));
        Staging {
            // The rest of the program runs on the other half.
            threads: (cores / 2).clamp(1, THREADS),
            piece: 2 << 20,
            slots: 2,
            threshold: 8 << 20,
        }
    }
}
