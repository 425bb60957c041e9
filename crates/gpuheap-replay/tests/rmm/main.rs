//! Compares models of RMM's resources with logs that RMM 26.10 wrote on an H200.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

use std::path::Path;

use gpuheap_replay::{Outcome, Program, models};
use gpuheap_trace::{ReadOptions, read};

const H200: u64 = 150_109_880_320;

fn run(log: &str, pool: &str) -> Outcome {
    let path = format!("tests/data/rmm-logs/{log}.dev0.csv.gz");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let traces = read(path, &ReadOptions::default()).unwrap();
    Program::from_trace(&traces[0]).run(&mut *models::build(pool, H200).unwrap())
}

#[test]
fn pool_peak_equals_upstream_count() {
    let outcome = run("cudf_like", "rmm:pool:initial_pool_size:512MiB");
    assert_eq!(outcome.failure, None);
    // Counted by `StatisticsResourceAdaptor` below the pool.
    assert_eq!(outcome.figures.peak_reserved, 2_147_483_648);
}

#[test]
fn full_pool_fails_at_recorded_request() {
    let settings = "rmm:pool:initial_pool_size:512MiB,maximum_pool_size:1536MiB";
    let outcome = run("cudf_oom", settings);
    let failure = outcome.failure.unwrap();
    assert!(failure.is_recorded);
    // RMM's error had "current/max/try size = 1.495909 GiB, 1.500000 GiB, 96.260254 MiB".
    assert_eq!(failure.refusal.figures.reserved, 1_606_220_288);
    assert_eq!(failure.refusal.needed, 100_936_192);
    assert_eq!(failure.refusal.allowed, 1536 << 20);
}
