//! Measures an allocation and its free while a process on another core sends the heap questions by
//! [`ask`], and while it sends none. The questions request the heap's status or leaks. Turns of
//! 0.1 s with one question alternate with turns without a question. The threads that answer share
//! the core of the allocating thread, so the clock counts their time too.
//!
//! ```text
//! cargo bench -p gpuheap --bench questions -- 0 1      # cores of this and the asking process
//! cargo bench -p gpuheap --bench questions --no-run    # prints the path of a program that also
//! ./questions-0123456789abcdef 0 1                     # runs on another machine, with taskset
//! ```
//!
//! Prints the median nanoseconds of an allocation with its free, by the thread's processor time and
//! by the clock. The time in a turn with a question is divided by the time in the neighbouring turn
//! without one. The ratio is the median of these quotients, with its 95 % confidence interval.

use std::error::Error;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use gpuheap::{Access, Device, Heap, PoolKind, Stream, Tracking};
use gpuheap_publish::{Question, ask, sockets};

/// Environment variable with the pid of the process that publishes a heap. The asking process reads
/// the variable.
const ASKED: &str = "GPUHEAP_BENCH_ASKED";

/// Number of turns with one question, each as long as [`TURN`]. As many turns have no question.
const TURNS: usize = 300;
const TURN: Duration = Duration::from_millis(100);
/// Number of allocations and frees between two readings of the clock.
const PAIRS: u32 = 500;

fn main() -> Result<(), Box<dyn Error>> {
    if let Ok(pid) = std::env::var(ASKED) {
        return ask_on_request(pid.parse()?);
    }
    let mut cores = std::env::args().filter(|word| word.parse::<usize>().is_ok());
    let own = cores.next().unwrap_or_else(|| "0".to_owned());
    let other = cores.next().unwrap_or_else(|| "1".to_owned());
    // Later threads start on the same core.
    let pid = std::process::id().to_string();
    let pinned = Command::new("taskset").args(["-cp", &own, &pid]).output()?;
    if !pinned.status.success() {
        return Err(String::from_utf8_lossy(&pinned.stderr).into());
    }
    for tracking in [Tracking::Off, Tracking::Counts] {
        compare(tracking, &other)?;
    }
    Ok(())
}

fn compare(tracking: Tracking, core: &str) -> Result<(), Box<dyn Error>> {
    let device = Device::open("emulated:16GiB")?;
    let builder = Heap::builder(&device).pool(PoolKind::Stitched).track(tracking);
    let heap = builder.publish(Access::Read).build()?;
    let stream = device.stream()?;
    let mut client = Command::new("taskset");
    client.args(["-c", core]).arg(std::env::current_exe()?);
    client.env(ASKED, std::process::id().to_string());
    let mut client = client.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut to_client = client.stdin.take().ok_or("no pipe")?;
    // The first turn warms up.
    turn(&heap, &stream)?;
    let mut turns: Vec<[[f64; 2]; 2]> = Vec::new();
    for number in 0..TURNS {
        let mut pair = [[0.0; 2]; 2];
        // The order alternates, so that a drift of the machine favours neither the turns with a
        // question nor the turns without.
        for is_asked in [number % 2 == 0, number % 2 != 0] {
            to_client.write_all(if is_asked { b"1" } else { b"0" })?;
            pair[usize::from(is_asked)] = turn(&heap, &stream)?;
        }
        turns.push(pair);
    }
    drop(to_client);
    let answers = String::from_utf8(client.wait_with_output()?.stdout)?;
    let mut out = std::io::stdout();
    writeln!(out, "tracking {tracking}: {} answers in {TURNS} turns", answers.trim())?;
    for (at, name) in ["processor", "clock"].into_iter().enumerate() {
        let [_, quiet, _] = median(turns.iter().map(|[quiet, _]| quiet[at]));
        let [_, asked, _] = median(turns.iter().map(|[_, asked]| asked[at]));
        let [least, ratio, most] = median(turns.iter().map(|[quiet, asked]| asked[at] / quiet[at]));
        writeln!(
            out,
            "  {name:<9} {quiet:.2} -> {asked:.2} ns, ratio {ratio:.4} [{least:.4}, {most:.4}]"
        )?;
    }
    Ok(())
}

/// Allocates and frees for a period of [`TURN`]. Returns the nanoseconds of an allocation with its
/// free, by the thread's processor time and by the clock.
fn turn(heap: &Heap, stream: &Stream) -> Result<[f64; 2], Box<dyn Error>> {
    let (began, processor, mut pairs) = (Instant::now(), processor_time(), 0);
    while began.elapsed() < TURN {
        for _ in 0..PAIRS {
            heap.allocate(1024, stream)?.free()?;
        }
        pairs += PAIRS;
    }
    let times = [processor_time() - processor, began.elapsed()];
    Ok(times.map(|time| time.as_secs_f64() * 1e9 / f64::from(pairs)))
}

/// Returns the median between two bounds that contain it with 95 % confidence. The rank of each
/// bound differs from the median's rank by 0.98 times the square root of the count.
fn median(values: impl Iterator<Item = f64>) -> [f64; 3] {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let (middle, apart) = (values.len() / 2, (0.98 * (values.len() as f64).sqrt()).ceil() as usize);
    [middle - apart, middle, middle + apart].map(|at| values[at])
}

fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes to `time`.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Sends a question to process `pid` for each `1` on stdin. Then prints the number of answers.
fn ask_on_request(pid: u32) -> Result<(), Box<dyn Error>> {
    let socket = sockets().into_iter().find(|socket| socket.pid == pid).ok_or("no socket")?;
    let mut questions = [Question::Status, Question::Leaks].iter().cycle();
    let mut answers = 0;
    for byte in std::io::stdin().lock().bytes() {
        if byte? == b'1'
            && let Some(question) = questions.next()
        {
            answers += u32::from(ask(&socket, question).is_ok());
        }
    }
    writeln!(std::io::stdout(), "{answers}")?;
    Ok(())
}
