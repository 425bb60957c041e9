//! Times of whole commands: `cargo bench -p gpuheap-cli`.

use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const RUNS: usize = 5;
const ALL_LOGS: [&str; 7] = [
    "cupy_groupby.csv.gz",
    "gpt_train.csv.gz",
    "gpt_train_short.csv.gz",
    "llama_ckpt.csv.gz",
    "llm_serve.csv.gz",
    "serve_threads.csv.gz",
    "two_streams.csv.gz",
];

fn main() -> io::Result<()> {
    // `cargo test --all-targets` also runs this program, without the flag.
    if !std::env::args().any(|argument| argument == "--bench") {
        return Ok(());
    }
    time("seven logs, five policies", 20, &ALL_LOGS)?;
    time("minimum of llm_serve", 60, &["--find-minimum", "llm_serve.csv.gz"])?;
    time("a short log, five policies", 1, &["two_streams.csv.gz"])
}

/// Prints the median next to the project's goal.
fn time(name: &str, goal_seconds: u64, arguments: &[&str]) -> io::Result<()> {
    let traces = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/traces");
    let mut times = Vec::new();
    for _ in 0..RUNS {
        let start = Instant::now();
        let status = Command::new(env!("CARGO_BIN_EXE_gpuheap"))
            .current_dir(&traces)
            .arg("replay")
            .args(arguments)
            .stdout(Stdio::null())
            .status()?;
        times.push(start.elapsed());
        assert!(status.success(), "{name}: {status}");
    }
    times.sort_unstable();
    let (median, goal) = (times[RUNS / 2], Duration::from_secs(goal_seconds));
    let (fastest, slowest) = (times[0], times[RUNS - 1]);
    writeln!(
        io::stdout().lock(),
        "{name}: {median:.2?} (of {RUNS}: {fastest:.2?} to {slowest:.2?}; goal {goal:.0?})"
    )
}
