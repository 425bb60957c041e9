//! Explains errors of RMM, of libraries on top of RMM, and of Dask.

use super::driver;
use super::explanation::{Explanation, explanation};
use super::sizes::{after, before};

/// Explains errors of RMM and of the libraries on top of RMM: cuDF, cuML, Dask.
pub(super) fn rmm(text: &str, on_wsl2: bool) -> Option<Explanation> {
    let is_pool = text.contains("Maximum pool size exceeded");
    // RMM's own words identify its error, even if the file's path was cut off.
    let is_rmm = text.contains("bad_alloc: out_of_memory: ")
        || (text.contains("rmm") || text.contains("RMM")) && text.contains("bad_alloc");
    if !is_pool && !is_rmm {
        return None;
    }
    let program = match (text.contains("dask") || text.contains("distributed"), is_cudf(text)) {
        (true, _) => "RMM, in a worker of Dask",
        (false, true) => "RMM, below cuDF",
        (false, false) => "RMM",
    };
    let found = if text.contains("pinned_host_memory_resource") || text.contains("PinnedHost") {
        refused_pinned(program, on_wsl2)
    } else if let Some(name) = other_error(text) {
        not_about_memory(program, name, on_wsl2)
    } else if text.contains("managed_memory_resource") && on_wsl2 {
        explanation(
            program,
            "Windows gives managed memory only as far as the card has room, so it cannot be larger \
             than the card",
            "rmm.reinitialize(pool_allocator=True, managed_memory=False)",
        )
        .with_alternatives(&[
            "export CUDF_SPILL=on # tables that do not fit go to the host",
            TABLES,
        ])
        .with_wsl2_guide()
    } else if on_wsl2 {
        on_windows(program, is_pool, is_start(text))
    } else if is_pool {
        pool(program, is_start(text))
    } else {
        explanation(program, "the driver has no memory left for the request", HOLDERS).with_alternatives(&[
            "del df; gc.collect() # tables and intermediate results that are done with",
            "export CUDF_SPILL=on # before python starts: cuDF moves all it can to the host",
            "rmm.reinitialize(managed_memory=True) # slower, larger than the card; not under WSL2",
            "gpuheap replay --find-minimum run.dev0.csv # a card that is enough",
        ])
    };
    let found =
        if text.contains("read_csv") { found.with_alternatives(&[CSV_PARTS]) } else { found };
    let found = match program {
        "RMM, in a worker of Dask" => found.with_alternatives(&[
            "LocalCUDACluster(rmm_pool_size=0.25, device_memory_limit=0.5) # shares of the card",
        ]),
        _ => found,
    };
    Some(found.with_figures(&[("requested", after(text, "failed to allocate "))]))
}

const HOLDERS: &str = "gpuheap status # who holds the card";
const TABLES: &str = "gpuheap explain rapids # sizes of pools for this machine";
const CSV_PARTS: &str =
    "cudf.read_csv(path, byte_range=(0, 2**28)) # a part at a time: docs/python.md";
const SMALL_START: &str =
    "rmm.reinitialize(pool_allocator=True, initial_pool_size=2**30) # begin with 1 GiB";

fn is_cudf(text: &str) -> bool {
    ["cudf", "pylibcudf", "libcudf"].iter().any(|name| text.contains(name))
}

/// Returns `true` if the request was for the initial size of a new pool.
fn is_start(text: &str) -> bool {
    ["reinitialize", "_initialize", "PoolMemoryResource", "__cinit__"]
        .iter()
        .any(|name| text.contains(name))
        && !text.contains("DeviceBuffer")
}

/// Returns the name of a CUDA error in the text, if the error is not about memory.
fn other_error(text: &str) -> Option<&str> {
    let name = |(at, _)| {
        let rest: &str = &text[at..];
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
        &rest[..end]
    };
    let mut names = text.match_indices("cudaError").map(name);
    names.find(|name| *name != "cudaErrorMemoryAllocation" && *name != "cudaError")
}

fn not_about_memory(program: &'static str, name: &str, on_wsl2: bool) -> Explanation {
    let cause = format!("the call failed with {name}, which is no lack of memory");
    if on_wsl2 {
        explanation(
            program,
            format!("{cause}; Windows has no pool of the driver that other processes may open"),
            "rmm.reinitialize(pool_allocator=True) # RMM's own pool",
        )
        .with_alternatives(&["gpuheap doctor --probe-cuda # features of this machine's driver"])
        .with_wsl2_guide()
    } else {
        let probe = "gpuheap doctor --probe-cuda # features of this machine's driver";
        explanation(program, cause, probe)
    }
}

fn refused_pinned(program: &'static str, on_wsl2: bool) -> Explanation {
    let smaller = "rmm.mr.PoolMemoryResource(rmm.mr.PinnedHostMemoryResource(), \
                   initial_pool_size=2**28, maximum_pool_size=2**28)";
    if on_wsl2 {
        return driver::pinned(program).with_alternatives(&[smaller]);
    }
    let cause = "the host has no memory left that can be pinned";
    explanation(program, cause, smaller).with_alternatives(&["free -h # free memory of the host"])
}

/// Explains a request of RMM that Windows refused.
fn on_windows(program: &'static str, is_pool: bool, is_start: bool) -> Explanation {
    let cause = match (is_start, is_pool) {
        (true, _) => {
            "Windows refused the pool's first piece: RMM's pool takes half of the card when it \
             starts, and Windows may refuse memory that the driver calls free"
        }
        (false, true) => {
            "the pool could not grow: its maximum is reached, or Windows refused the next piece, \
             which it may do below the memory that the driver calls free"
        }
        (false, false) => {
            "Windows refused the request. It may refuse device memory that the driver calls free; \
             RMM's pool takes half of the card when it starts, and pinned memory ends at 0.5 to 1 \
             GiB"
        }
    };
    explanation(program, cause, SMALL_START)
        .with_alternatives(&[
            TABLES,
            "gpuheap free # who holds the card, programs of Windows included",
            "export CUDF_SPILL=on # tables that do not fit go to the host",
        ])
        .with_wsl2_guide()
}

fn pool(program: &'static str, is_start: bool) -> Explanation {
    if is_start {
        let cause = "the pool could not take its first piece, half of the card unless it is told";
        return explanation(program, cause, SMALL_START).with_alternatives(&[HOLDERS]);
    }
    explanation(
        program,
        "the pool could not grow: its maximum is reached, or the device is full",
        HOLDERS,
    )
    .with_alternatives(&[
        "rmm.mr.set_current_device_resource(rmm.mr.CudaAsyncMemoryResource()) # no pieces",
        "export CUDF_SPILL=on # before python starts: cuDF moves all it can to the host",
        "gpuheap replay --find-minimum run.dev0.csv # a card that is enough",
    ])
}

/// Explains workers of Dask that ended because the host's memory ran out.
pub(super) fn dask(text: &str, on_wsl2: bool) -> Option<Explanation> {
    let budget = text.find("% memory budget").map(|end| {
        let digits = text[..end].rsplit(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
        digits.to_owned()
    });
    let is_killed =
        text.contains("KilledWorker") || text.contains("all those workers died while running it");
    let is_paused = text.contains("% memory usage. Pausing worker");
    let found = if let Some(percent) = budget {
        let cause = format!(
            "a worker used {percent} % of its share of the host's memory, and was ended for it; \
             this is not memory of the GPU"
        );
        explanation("Dask", cause, SMALL_PARTS)
    } else if is_paused {
        let cause = "a worker waits, because its share of the host's memory is nearly used; this \
                     is not memory of the GPU";
        explanation("Dask", cause, SMALL_PARTS)
    } else if is_killed {
        let cause = "the workers that ran a task ended. Most often the host's memory ran out: the \
                     nanny ends a worker at 95 % of its share, and the kernel ends it when there \
                     is none";
        let fix = "gpuheap explain < worker.log # the worker's own error, which this text lacks";
        explanation("Dask", cause, fix).with_alternatives(&[
            "sudo dmesg | grep -i 'killed process' # whether the kernel ended it",
            SMALL_PARTS,
        ])
    } else {
        return None;
    };
    let found = found.with_alternatives(&[
        "LocalCUDACluster(n_workers=1, memory_limit=\"auto\") # larger shares",
    ]);
    Some(add_wsl2_host(found, on_wsl2).rounded(true).with_figures(&[
        ("used by the worker", after(text, "Process memory: ")),
        ("share of the worker", {
            let limit = after(text, "Worker memory limit: ");
            limit.or_else(|| before(text, " worker memory limit"))
        }),
    ]))
}

const SMALL_PARTS: &str = "ddf = ddf.repartition(partition_size=\"128MiB\") # smaller pieces";

/// Adds the setting for more host memory under WSL2.
pub(super) fn add_wsl2_host(found: Explanation, on_wsl2: bool) -> Explanation {
    if !on_wsl2 {
        return found;
    }
    found
        .with_alternatives(&[
            "gpuheap explain wslconfig # WSL2 has half of the host's memory unless it is told",
        ])
        .with_wsl2_guide()
}
