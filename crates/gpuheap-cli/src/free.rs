//! `gpuheap free` and `gpuheap wait`.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use gpuheap::Size;
use gpuheap_doctor::free::Cache;
use gpuheap_doctor::machine::Gpu;
use gpuheap_doctor::{Machine, free, status};
use gpuheap_publish::Detail;
use gpuheap_text::mib;

use crate::exit::{Failure, Verdict};
use crate::values::size;
use crate::{machine, output};

/// Arguments of `gpuheap free`.
#[derive(Args, Debug)]
pub(crate) struct FreeArguments {
    /// First make each program return its cached memory, if the program allows that. Then end
    /// proven orphans (processes that hold the memory of an ended process). Do nothing else
    #[arg(long, conflicts_with = "machine")]
    yes: bool,

    /// Read a recorded machine instead of this one
    #[arg(long, value_name = "FILE")]
    machine: Option<PathBuf>,

    /// Print one JSON object
    #[arg(long, conflicts_with = "yes")]
    json: bool,
}

/// Prints the holders of memory, and steps that would free the memory. With `--yes`, flushes the
/// programs that allow a flush, ends proven orphans, and prints the memory that became free.
/// Returns [`Verdict::Findings`] if no memory became free.
pub(crate) fn run(arguments: &FreeArguments) -> Result<Verdict, Failure> {
    let mut machine = machine::read(arguments.machine.as_ref(), Detail::Heaps)?;
    let devices = machine::devices(&machine, None);
    if machine.programs.is_empty() {
        devices?;
    }
    machine.examine();
    let mut plan = free::plan(&machine);
    if !arguments.yes {
        let text = if arguments.json { plan.to_json() } else { plan.render(machine::width()) };
        return output::print(&text).map(|()| Verdict::Fine);
    }
    let flushed = flush(&plan.caches)?;
    if plan.orphans.is_empty() && flushed > 0 {
        return Ok(Verdict::Fine);
    }
    if plan.orphans.is_empty() {
        let reason =
            plan.unproven.take().unwrap_or_else(|| "no process is a proven orphan".to_owned());
        let text = format!("nothing was ended: {reason}\n{}", plan.render(machine::width()));
        return output::print(&text).map(|()| Verdict::Findings);
    }
    std::thread::sleep(SECOND_LOOK);
    let mut later = machine::read(None, Detail::Heaps)?;
    later.examine();
    plan.confirm(&free::plan(&later));
    if plan.orphans.is_empty() {
        let text = "nothing was ended: a second look did not find the same; try again\n";
        return output::print(text).map(|()| Verdict::Findings);
    }
    let before = machine;
    for orphan in &plan.orphans {
        free::end(orphan).map_err(Failure::environment_error)?;
        output::print(&format!("ended pid {} ({})\n", orphan.pid, orphan.command))?;
    }
    let wanted: u64 = plan.orphans.iter().map(|orphan| orphan.bytes).fold(0, u64::max);
    print_returned(before.devices(), wanted)
}

/// Flushes the caches of programs, and prints each result. Returns the bytes that were freed.
fn flush(caches: &[Cache]) -> Result<u64, Failure> {
    let mut sum: u64 = 0;
    for cache in caches {
        let (bytes, text) = free::flush(cache);
        sum = sum.saturating_add(bytes);
        output::print(&text)?;
    }
    Ok(sum)
}

/// Prints the memory that became free. Returns [`Verdict::Findings`] if no memory became free.
fn print_returned(before: &[Gpu], wanted: u64) -> Result<Verdict, Failure> {
    let text = wait_for_memory(before, wanted);
    let verdict = if text == NOTHING { Verdict::Findings } else { Verdict::Fine };
    output::print(&text).map(|()| verdict)
}

/// Text if no memory became free.
const NOTHING: &str = "nothing came back\n";

/// Time between the two searches for orphans that `--yes` makes before it ends a process. In one
/// search alone, a process that has just started may look as if it had ended. So only processes
/// that both searches find are ended.
const SECOND_LOOK: Duration = Duration::from_secs(1);

/// Waits until `wanted` bytes more are free, for five seconds at most. Returns a text with the
/// memory that became free on each device.
pub(crate) fn wait_for_memory(before: &[Gpu], wanted: u64) -> String {
    let start = Instant::now();
    loop {
        let after = machine::read(None, Detail::Heaps).ok();
        let after = after.as_ref().map_or(&[][..], Machine::devices);
        let back: Vec<(u32, u64)> = before
            .iter()
            .zip(after)
            .map(|(before, after)| (after.index, after.free.saturating_sub(before.free)))
            .collect();
        let sum = back
            .iter()
            .map(|(_, bytes)| bytes)
            .fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
        if sum >= wanted || start.elapsed() > Duration::from_secs(5) {
            let lines = back.iter().filter(|(_, bytes)| *bytes > 0);
            let lines = lines.map(|(gpu, bytes)| format!("GPU {gpu}: {} came back\n", mib(*bytes)));
            let text: String = lines.collect();
            return if text.is_empty() { NOTHING.to_owned() } else { text };
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Arguments of `gpuheap wait`.
#[derive(Args, Debug)]
pub(crate) struct WaitArguments {
    /// Memory to wait for: 10GiB, 500M, 50%
    #[arg(long, value_name = "SIZE", value_parser = size, allow_hyphen_values = true)]
    free: Size,

    /// Seconds after which to give up [default: never]
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,

    /// The device, by number [default: any]
    #[arg(long, value_name = "NUMBER")]
    device: Option<u32>,

    /// Read a recorded machine instead of this one
    #[arg(long, value_name = "FILE")]
    machine: Option<PathBuf>,
}

/// Time between two reads of the machine.
const PERIOD: Duration = Duration::from_millis(500);

/// Blocks until the memory is free.
pub(crate) fn wait(arguments: &WaitArguments) -> Result<Verdict, Failure> {
    let start = Instant::now();
    loop {
        let machine = machine::read(arguments.machine.as_ref(), Detail::Heaps)?;
        let devices = machine::devices(&machine, arguments.device)?;
        let enough = devices.iter().find(|gpu| gpu.free >= arguments.free.to_bytes(gpu.total));
        if let Some(gpu) = enough {
            let text = format!("{gpu} has {} free\n", mib(gpu.free));
            return output::print(&text).map(|()| Verdict::Fine);
        }
        let left = arguments
            .timeout
            .map(|seconds| Duration::from_secs(seconds).saturating_sub(start.elapsed()));
        if left == Some(Duration::ZERO) {
            let seconds = arguments.timeout.unwrap_or(0);
            let accounts: Vec<_> =
                devices.iter().map(|gpu| status::Account::new(&machine, gpu)).collect();
            let held = status::render(&accounts, "", machine::width());
            let text = format!("not free within {seconds} s; the memory is held by:\n{held}");
            return output::print(&text).map(|()| Verdict::Findings);
        }
        std::thread::sleep(left.map_or(PERIOD, |left| left.min(PERIOD)));
    }
}
