//! Times whole commands: `cargo bench -p gpuheap-cli`. With `-- page`, times only the HTML page of
//! a report.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use gpuheap_trace::MemoryKind;
use gpuheap_trace::capture::{Address, CaptureWriter, Record, Time};

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
    // `cargo test --all-targets` also runs this program, but without `--bench`.
    if !std::env::args().any(|argument| argument == "--bench") {
        return Ok(());
    }
    if std::env::args().any(|argument| argument == "page") {
        return time_page();
    }
    time("seven logs, five policies", 20, &ALL_LOGS)?;
    time("minimum of llm_serve", 60, &["--find-minimum", "llm_serve.csv.gz"])?;
    time("a short log, five policies", 1, &["two_streams.csv.gz"])?;
    time_page()
}

/// Prints how long it takes to write the HTML page of a large capture, and to open it in Chromium.
fn time_page() -> io::Result<()> {
    let folder = tempfile::tempdir()?;
    let (path, page) = (folder.path().join("large.gph"), folder.path().join("page.html"));
    write_large(&path)?;
    let start = Instant::now();
    let mut report = Command::new(env!("CARGO_BIN_EXE_gpuheap"));
    report.arg("report").arg(&path).args(["--format", "html", "--output"]).arg(&page);
    assert!(report.stdout(Stdio::null()).status()?.success());
    let (written, bytes) = (start.elapsed(), page.metadata()?.len());
    writeln!(io::stdout().lock(), "page of 5 million events: {written:.2?}, {bytes} bytes")?;
    let mut text = std::fs::read_to_string(&page)?;
    text.push_str(
        "<script>const wait = setInterval(() => { if (!document.body.dataset.ready) return;
        clearInterval(wait); console.log(`ready after ${Math.round(performance.now())} ms`); }, 5)
        </script>",
    );
    std::fs::write(&page, text)?;
    for _ in 0..RUNS {
        let mut chromium = Command::new("chromium")
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic"])
            .args(["--no-first-run", "--disable-background-networking", "--disable-sync"])
            .args(["--disable-component-update", "--enable-logging=stderr"])
            .args(["--remote-debugging-port=0"])
            .arg(format!("--user-data-dir={}", folder.path().join("profile").display()))
            .arg(format!("file://{}", page.display()))
            .stderr(Stdio::piped())
            .spawn()?;
        let Some(stderr) = chromium.stderr.take() else { continue };
        let mut lines = BufReader::new(stderr).lines().map_while(Result::ok);
        let ready = lines.find_map(|line| Some(line.split_once("ready after ")?.1.to_owned()));
        chromium.kill()?;
        chromium.wait()?;
        let ready = ready.unwrap_or_default();
        let ready = ready.split('"').next().unwrap_or_default();
        writeln!(io::stdout().lock(), "opened after {ready} (goal 3 s)")?;
    }
    Ok(())
}

/// Writes a capture of 5 million events. 16 threads allocate at 200 lines of code.
fn write_large(path: &Path) -> io::Result<()> {
    const EVENTS: u64 = 5_000_000;
    const HELD: usize = 10_000;
    const SITES: u32 = 200;
    const THREADS: u32 = 16;
    let mut writer = CaptureWriter::new(BufWriter::new(File::create(path)?))?;
    writer.write(&Record::Text { text: "step" })?;
    writer.write(&Record::Text { text: "/home/a/train.py" })?;
    for line in 1..=SITES {
        writer.write(&Record::Frame { function: 1, file: 2, line })?;
        writer.write(&Record::Stack { addresses: vec![].into(), frames: vec![line].into() })?;
    }
    for thread in 1..=THREADS {
        let id = u64::from(thread);
        writer.write(&Record::ThreadStart { time: Time(0), id, name: "worker" })?;
    }
    let mut held = VecDeque::new();
    let (mut free, mut next) = (Vec::new(), 0x7f00_0000_0000);
    let mut random = 1_u64;
    for event in 0..EVENTS {
        let time = Time(event * 1000);
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let number = (random >> 40) as u32;
        let (thread, stream) = (number % THREADS + 1, 0);
        if held.len() > HELD || !held.is_empty() && number.is_multiple_of(2) {
            // Mostly frees the newest block, so that a few blocks live long.
            let last = if number.is_multiple_of(31) { held.pop_front() } else { held.pop_back() };
            let freed = last.unwrap_or_default();
            free.push(freed);
            let address = Address(freed);
            writer.write(&Record::Free { time, thread, space: 0, stream, address })?;
            continue;
        }
        let address = free.pop().unwrap_or(next);
        next = next.max(address + (1 << 20));
        held.push_back(address);
        let bytes = u64::from(number % 2000 + 1) << 9;
        let (kind, stack) = (MemoryKind::Device, number / 7 % SITES + 1);
        let address = Address(address);
        writer.write(&Record::Allocate {
            time,
            thread,
            kind,
            device: 0,
            stream,
            address,
            bytes,
            stack,
        })?;
    }
    writer.flush()
}

/// Runs a command several times, and prints the median time next to the project's goal.
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
