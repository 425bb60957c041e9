//! Counters of driver calls, by function.

use std::sync::LazyLock;

use gpuheap_driver::cuda_functions;

macro_rules! symbols {
    ([] $($(#[$doc:meta])* $base:ident [$since:literal $symbol:ident $(, $pt_since:literal $pt_symbol:ident)?] ($($arg:ident: $type:ty),*);)*) => {
        /// Index of each function in the counters.
        #[allow(non_camel_case_types)]
        pub(crate) enum Symbol { $($symbol),* }

        /// Symbols in the table's order.
        pub(crate) const SYMBOLS: &[&str] = &[$(stringify!($symbol)),*];
    };
}

cuda_functions!(symbols);

/// Returns the index of a symbol in the counters; `None` for a symbol that is not in the table.
pub(crate) fn symbol_index(symbol: &str) -> Option<usize> {
    SYMBOLS.iter().position(|known| *known == symbol)
}

/// `true` for each function that launches, fills or uploads, indexed like [`SYMBOLS`]. After such
/// work, a request does not count as a retry of a request that was refused before. A program may
/// copy to the host before a retry, so copies to the host are `false`.
pub(crate) static GIVES_WORK: LazyLock<Vec<bool>> = LazyLock::new(|| {
    const BEGINNINGS: [&str; 4] = ["cuLaunch", "cuGraphLaunch", "cuMemset", "cuMemcpyHtoD"];
    let gives_work = |symbol: &&str| BEGINNINGS.iter().any(|start| symbol.starts_with(start));
    SYMBOLS.iter().map(gives_work).collect()
});

/// Counts of an emulator's work, in addition to the counts of calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Launches of kernels that were not run, including launches in graphs.
    pub launches_dropped: u64,
    /// Copies from device memory to the host.
    pub copies_to_host: u64,
    /// Calls that failed for lack of memory.
    pub out_of_memory: u64,
}

/// Counters of driver calls.
pub(crate) struct Calls {
    pub(crate) total: u64,
    pub(crate) of: Vec<u64>,
    /// Number of unsupported calls that were refused, for each function.
    pub(crate) refused: Vec<u64>,
    /// Total number of calls, and number of calls of each function, when the plan of failures was
    /// set.
    pub(crate) planned_from: (u64, Vec<u64>),
}

impl Calls {
    pub(crate) fn new() -> Calls {
        let none = vec![0; SYMBOLS.len()];
        Calls { total: 0, of: none.clone(), refused: none.clone(), planned_from: (0, none) }
    }

    pub(crate) fn count(&mut self, symbol: usize) {
        self.total += 1;
        self.of[symbol] += 1;
    }

    pub(crate) fn since_plan(&self, symbol: usize) -> (u64, u64) {
        (self.total - self.planned_from.0, self.of[symbol] - self.planned_from.1[symbol])
    }
}
