//! Settings of staged copies of pageable memory.

use std::sync::OnceLock;
use std::thread;

/// Settings of staged copies. Only benches and tests set them.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Staging {
    /// Maximum number of threads that copy, including the calling thread.
    pub threads: usize,
    /// Bytes of a slot.
    pub piece: usize,
    /// Number of slots of each thread. The thread writes one slot while the device reads the other
    /// slots.
    pub slots: usize,
    /// Size in bytes below which a copy is left to the driver.
    pub threshold: usize,
}

/// Upper bound of the number of threads that copy. Eight cores saturate the link of an H200.
const THREADS: usize = 8;

impl Default for Staging {
    fn default() -> Staging {
        static CORES: OnceLock<usize> = OnceLock::new();
        let cores = *CORES.get_or_init(|| thread::available_parallelism().map_or(1, usize::from));
        Staging {
            // Half of the cores is left to the rest of the program.
            threads: (cores / 2).clamp(1, THREADS),
            piece: 2 << 20,
            slots: 2,
            threshold: 8 << 20,
        }
    }
}
