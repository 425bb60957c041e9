//! Cost of an allocation during ten questions a second of another process, and without questions.
//! Both take turns, a fifth of a second each, so that a busy machine slows both alike.
//!
//! ```text
//! cargo bench -p gpuheap --bench questions
//! ```
//!
//! Prints nanoseconds of a pair of allocation and free: the thread's processor time divided by the
//! pairs, and the median of the elapsed time of rounds.

use std::error::Error;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use gpuheap::{Access, Device, Heap, PoolKind, Stream, Tracking};
use gpuheap_publish::{Question, ask, sockets};

/// Pid of the publishing process, in the environment of the other process.
const ASKED: &str = "GPUHEAP_BENCH_ASKED";

/// Phases with questions, and as many without.
const PHASES: usize = 100;
const PHASE: Duration = Duration::from_millis(200);
/// Pairs of a round. It takes some 0.1 ms, so most rounds are not interrupted.
const PAIRS: u32 = 2000;

fn main() -> Result<(), Box<dyn Error>> {
    if let Ok(pid) = std::env::var(ASKED) {
        return ask_on_request(pid.parse()?);
    }
    for tracking in [Tracking::Off, Tracking::Counts] {
        compare(tracking)?;
    }
    Ok(())
}

fn compare(tracking: Tracking) -> Result<(), Box<dyn Error>> {
    let device = Device::open("emulated:16GiB")?;
    let builder = Heap::builder(&device).pool(PoolKind::Stitched).track(tracking);
    let heap = builder.publish(Access::Read).build()?;
    let stream = device.stream()?;
    let mut client = start_client()?;
    let mut to_client = client.stdin.take().ok_or("no pipe")?;
    let (mut quiet, mut asked) = (Phases::default(), Phases::default());
    // The first phase warms up.
    Phases::default().run(&heap, &stream)?;
    for _ in 0..PHASES {
        quiet.run(&heap, &stream)?;
        to_client.write_all(b"1")?;
        asked.run(&heap, &stream)?;
        to_client.write_all(b"0")?;
    }
    drop(to_client);
    let output = client.wait_with_output()?;
    let answers = String::from_utf8(output.stdout)?;
    let ((cpu, median), (asked_cpu, asked_median)) = (quiet.result(), asked.result());
    let change = |before: f64, after: f64| 100.0 * (after / before - 1.0);
    writeln!(
        std::io::stdout(),
        "tracking {tracking}: {} answers\n  processor {cpu:.2} -> {asked_cpu:.2} ns, {:+.2} %\n  \
         median    {median:.2} -> {asked_median:.2} ns, {:+.2} %",
        answers.trim(),
        change(cpu, asked_cpu),
        change(median, asked_median),
    )?;
    Ok(())
}

/// Rounds of pairs.
#[derive(Default)]
struct Phases {
    processor: Duration,
    rounds: Vec<Duration>,
}

impl Phases {
    fn run(&mut self, heap: &Heap, stream: &Stream) -> Result<(), Box<dyn Error>> {
        let (began, processor) = (Instant::now(), processor_time());
        while began.elapsed() < PHASE {
            let round = Instant::now();
            for _ in 0..PAIRS {
                heap.allocate(1024, stream)?.free()?;
            }
            self.rounds.push(round.elapsed());
        }
        self.processor += processor_time() - processor;
        Ok(())
    }

    /// Returns nanoseconds of a pair: by processor time, and of the median round.
    fn result(mut self) -> (f64, f64) {
        self.rounds.sort_unstable();
        let pair = |time: Duration, rounds: usize| {
            time.as_secs_f64() * 1e9 / (rounds.max(1) as f64 * f64::from(PAIRS))
        };
        let median = self.rounds.get(self.rounds.len() / 2).copied().unwrap_or_default();
        (pair(self.processor, self.rounds.len()), pair(median, 1))
    }
}

/// Returns the processor time of this thread.
fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes to `time`.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn start_client() -> Result<Child, Box<dyn Error>> {
    let mut command = Command::new(std::env::current_exe()?);
    command.env(ASKED, std::process::id().to_string());
    Ok(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?)
}

/// Asks while the last byte of stdin is a 1. Prints the number of answers at the end of stdin.
fn ask_on_request(pid: u32) -> Result<(), Box<dyn Error>> {
    let (asks, ends) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (asks_now, ends_now) = (asks.clone(), ends.clone());
    std::thread::spawn(move || {
        for byte in std::io::stdin().lock().bytes().map_while(Result::ok) {
            asks_now.store(byte == b'1', Ordering::Relaxed);
        }
        ends_now.store(true, Ordering::Relaxed);
    });
    let socket = sockets().into_iter().find(|socket| socket.pid == pid).ok_or("no socket")?;
    let mut answers = 0;
    while !ends.load(Ordering::Relaxed) {
        for question in [Question::Status, Question::Leaks] {
            if asks.load(Ordering::Relaxed) {
                answers += u32::from(ask(&socket, &question).is_ok());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    writeln!(std::io::stdout(), "{answers}")?;
    Ok(())
}
