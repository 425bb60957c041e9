//! Runs hot paths, so that `.ci/instructions` can count their instructions under callgrind.
//!
//! ```text
//! gpuheap-instructions CASE COUNT
//! gpuheap-instructions cases
//! ```
//!
//! A case is set up, warmed up, and then run COUNT times. The cost of one operation is the
//! difference in instructions between a larger and a smaller COUNT, divided by the difference of
//! the counts. Startup and exit cancel out. `cases` prints each case with both counts.

use std::error::Error;
use std::hint::black_box;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use gpuheap::emu::Profile;
use gpuheap::{Device, Heap, PoolKind};
use gpuheap_replay::Program;
use gpuheap_replay::models::build;
use gpuheap_trace::{ReadOptions, read};

type Done<T = ()> = Result<T, Box<dyn Error>>;

const WARM: u64 = 200;
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Operation that is run COUNT times.
enum Work {
    /// Allocates and frees `bytes`. The thread cache holds at most `thread_cache` bytes.
    Pair { pool: PoolKind, bytes: u64, thread_cache: Option<u64> },
    /// Queries a completed event once. This measures the instructions of one driver call.
    DriverCall,
    /// Replays one event of a trace in the model of PyTorch's allocator.
    TorchEvent,
}

fn cases() -> Vec<(String, Work)> {
    let pools = [PoolKind::Stitched, PoolKind::Split, PoolKind::Binned];
    let pair = |name: &str, bytes, thread_cache| {
        pools.map(|pool| {
            (format!("{name}_{}", pool.name()), Work::Pair { pool, bytes, thread_cache })
        })
    };
    let mut cases = Vec::new();
    cases.extend(pair("pair_1kib", KIB, None));
    cases.extend(pair("pair_1kib_uncached", KIB, Some(0)));
    cases.extend(pair("pair_64mib", 64 * MIB, None));
    cases.push((
        "pair_1kib_none".to_owned(),
        Work::Pair { pool: PoolKind::None, bytes: KIB, thread_cache: None },
    ));
    cases.push(("driver_call".to_owned(), Work::DriverCall));
    cases.push(("torch_event".to_owned(), Work::TorchEvent));
    cases
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match run(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // If stderr cannot be written, the error cannot be reported.
            let _ = writeln!(io::stderr(), "gpuheap-instructions: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(words: &[String]) -> Done {
    match words {
        [word] if word == "cases" => {
            let pass = torch_program()?.len();
            for (name, work) in cases() {
                let fewer = if matches!(work, Work::TorchEvent) { pass } else { 1000 };
                writeln!(io::stdout(), "{name} {fewer} {}", 3 * fewer)?;
            }
            Ok(())
        }
        [name, count] => {
            let count = count.parse()?;
            let case = cases().into_iter().find(|case| case.0 == *name);
            let Some((_, work)) = case else {
                return Err(format!("no case '{name}'; 'cases' lists them").into());
            };
            match work {
                Work::Pair { pool, bytes, thread_cache } => pairs(pool, bytes, thread_cache, count),
                Work::DriverCall => driver_calls(count),
                Work::TorchEvent => torch_events(count),
            }
        }
        _ => Err("usage: gpuheap-instructions CASE COUNT, or gpuheap-instructions cases".into()),
    }
}

fn pairs(pool: PoolKind, bytes: u64, thread_cache: Option<u64>, count: u64) -> Done {
    let device = Device::emulated(Profile::h200())?;
    let mut builder = Heap::builder(&device).pool(pool).without_environment();
    if let Some(bytes) = thread_cache {
        builder = builder.thread_cache(bytes);
    }
    let heap = builder.build()?;
    let stream = device.stream()?;
    for _ in 0..WARM + count {
        drop(heap.allocate(black_box(bytes), &stream)?);
    }
    Ok(())
}

fn driver_calls(count: u64) -> Done {
    let device = Device::emulated(Profile::h200())?;
    let event = device.stream()?.record()?;
    event.synchronize()?;
    for _ in 0..WARM + count {
        black_box(event.is_done()?);
    }
    Ok(())
}

fn torch_program() -> Done<Program> {
    let traces = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/traces");
    let traces = read(traces.join("gpt_train_short.csv.gz"), &ReadOptions::default())?;
    Ok(Program::from_trace(traces.first().ok_or("the trace is empty")?))
}

/// Replays a trace as often as it fits into `count` events. Each pass starts with an empty model.
fn torch_events(count: u64) -> Done {
    const H200: u64 = 150_109_880_320;
    let program = torch_program()?;
    for _ in 0..count / program.len() as u64 {
        let mut model = build("torch", H200)?;
        black_box(program.run(&mut *model));
    }
    Ok(())
}
