//! Verdict of a dry run, as data. Sizes are bytes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::batch::FindBatch;

/// Verdict of a dry run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verdict {
    /// The command line of the program, quoted for a shell.
    pub program: String,
    /// Number of devices.
    pub devices: u32,
    /// Results, one for each card in the order of the options.
    pub cards: Vec<CardResult>,
    /// Result of the search for a variable's largest value; `None` without `--find-batch`.
    pub batch: Option<Batch>,
    /// Memory at the peak; `None` if nothing was recorded.
    pub peak: Option<Peak>,
    /// Memory that the program needs, computed by a replay of its trace; `None` if nothing was
    /// recorded.
    pub needs: Option<Needs>,
    /// Peak of memory in use on a device with more memory than any card. `None` if the program fits
    /// on a card, or does not complete on that device either.
    pub with_room: Option<u64>,
    /// `true` if the program may take more memory than the peaks, needs and remedies show. Either
    /// memory ran out, and the trace ends there, or sizes depended on kernels' results.
    pub is_lower_bound: bool,
    /// Peaks of two runs: operators such as `nonzero` find as many elements as possible in one run,
    /// and as few as possible in the other. `None` if the peaks were not requested, or if no size
    /// depended on a kernel's result.
    pub range: Option<ResultRange>,
    /// Settings of the allocator with which the program fits, or takes less memory.
    pub remedies: Vec<Remedy>,
    /// Remedies with which the program was run, and remedies whose memory is only estimated.
    pub trials: Vec<Trial>,
    /// Memory that cuDNN's benchmark mode adds. It is measured only if remedies are run. `None` if
    /// no remedy was run, or if the program does not use benchmark mode.
    pub benchmark: Option<Benchmark>,
    /// Reads and calls whose results a dry run cannot know.
    pub unknown: Unknown,
    /// Notes for the user. Each is a line about something missing or unexpected.
    pub notes: Vec<String>,
    /// Command to type next; `None` if no other run would add information.
    pub next: Option<String>,
    /// `true` if a signal ended the command before all runs had ended.
    pub is_interrupted: bool,
}

/// Result of the program on one card.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CardResult {
    /// Name of the card.
    pub card: String,
    /// Total memory that the driver reports.
    pub total: u64,
    /// Memory that a program can take, which is the total minus the context.
    pub usable: u64,
    /// `true` if a figure of the card is an estimate.
    pub is_estimated: bool,
    /// Outcome of the program on the card.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// `true` if the outcome is computed by a replay of another card's trace.
    pub is_replayed: bool,
    /// Way in which the program ended; `None` if it was not run.
    pub ended: Option<Ended>,
    /// Verdicts, one for each device that a process used; empty if the program was not run.
    pub devices: Vec<DeviceVerdict>,
    /// Processes that used a device.
    pub processes: Vec<ProcessResult>,
    /// Seconds that the run took.
    pub seconds: f64,
    /// Last lines of standard error if the program failed and its output was dropped, else empty.
    pub errors: String,
}

/// Way in which a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// The program exited with this status.
    Exit(i32),
    /// The signal with this number ended the program.
    Signal(i32),
    /// The command ended the program at the time limit.
    TimeLimit,
    /// A signal to `gpuheap dry-run` ended the program.
    Interrupted,
}

/// Outcome on a card, from the best to the worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(tag = "outcome", content = "reason", rename_all = "snake_case")]
pub enum Outcome {
    /// The program did not run out of memory, as far as it was run.
    Fits,
    /// The program did not run out of memory. But some sizes depended on kernels' results, and a
    /// dry run does not have these results.
    FitsAsFarAsKnown,
    /// Device memory and managed memory together exceed the device. On Linux, the program runs, and
    /// pages move between host and device. Under WSL2 and on Windows, the program fails.
    Oversubscribed,
    /// Memory ran out.
    DoesNotFit,
    /// The run does not show whether the program fits.
    NoVerdict(Reason),
}

/// Reason why a run has no verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The program was ended at the time limit, before it completed an optimiser step.
    NoStep,
    /// A signal ended the command.
    Interrupted,
    /// No process allocated device memory.
    NoGpuUsed,
    /// The CUDA runtime is linked statically into the program, so no stand-in can replace it.
    StaticRuntime,
    /// The program failed for a reason other than memory.
    Failed,
    /// The program read the same results again and again, without progress.
    Hang,
    /// A request is much larger than the peak of all other requests. A value that the dry run chose
    /// in place of a kernel's result may have decided its size.
    AbsurdRequest,
    /// Memory ran out on another device first.
    OtherDevice,
}

impl Outcome {
    /// Returns `true` if the program fits, as far as a dry run can know.
    pub fn is_fit(self) -> bool {
        matches!(self, Outcome::Fits | Outcome::FitsAsFarAsKnown)
    }

    /// Returns the name of the outcome in the JSON.
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Fits => "fits",
            Outcome::FitsAsFarAsKnown => "fits_as_far_as_known",
            Outcome::Oversubscribed => "oversubscribed",
            Outcome::DoesNotFit => "does_not_fit",
            Outcome::NoVerdict(_) => "no_verdict",
        }
    }
}

/// Verdict for one device. Memory is in bytes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DeviceVerdict {
    /// Number of the device in the machine.
    pub number: u32,
    /// Outcome on the device.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// Peak of memory in use by all processes together, including contexts; `None` if the driver
    /// wrote no report.
    pub peak: Option<u64>,
    /// Memory that all processes together can take, which is the total minus the margin.
    pub limit: u64,
    /// Peak of memory in use in a further run on devices with memory to spare; `None` if no such
    /// run was made or completed.
    pub with_room: Option<u64>,
    /// Processes that used the device.
    pub users: Vec<User>,
}

/// A process that used a device.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct User {
    /// Id of the process.
    pub pid: u32,
    /// Rank of the process in its group; `None` if the process has no rank.
    pub rank: Option<String>,
}

/// Figures of a process.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ProcessResult {
    /// Id of the process.
    pub pid: u32,
    /// Rank of the process in its group; `None` if the process has no rank.
    pub rank: Option<String>,
    /// Version of PyTorch; `None` if the process has not loaded PyTorch.
    pub torch: Option<String>,
    /// Number of completed optimiser steps.
    pub steps: u64,
    /// Figures for each device that the process used.
    pub devices: Vec<DeviceResult>,
    /// The first failed requests of PyTorch.
    pub failures: Vec<Failure>,
    /// Refused requests for device memory, at most one for each place in the program.
    pub refused: Vec<Refusal>,
    /// Number of requests that PyTorch's allocator failed to serve. If it served all, or the
    /// process does not use PyTorch: the number of allocations that the driver refused.
    pub failed: u64,
}

/// Figures of a process on one device. Memory is in bytes.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct DeviceResult {
    /// Ordinal of the device in the process.
    pub device: u32,
    /// Index of the device in the machine. It differs from the ordinal in a process with
    /// `CUDA_VISIBLE_DEVICES`.
    pub number: u32,
    /// Peak of requested bytes; `None` without PyTorch.
    pub requested: Option<u64>,
    /// Peak of allocated bytes; `None` without PyTorch.
    pub allocated: Option<u64>,
    /// Peak of reserved bytes; `None` without PyTorch.
    pub reserved: Option<u64>,
    /// Number of allocations by PyTorch; `None` without PyTorch.
    pub allocations: Option<u64>,
    /// Optimiser step that reached the peak, counted from one.
    pub step: Option<u64>,
    /// Peak of memory in use on the device, including the context; `None` if the driver wrote no
    /// report.
    pub in_use: Option<u64>,
    /// Peak of managed memory; `None` if the driver wrote no report.
    pub managed: Option<u64>,
    /// Peak of the sum of memory in use and managed memory; `None` if the driver wrote no report.
    pub demand: Option<u64>,
}

/// A failed request of PyTorch.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Failure {
    /// Ordinal of the device.
    pub device: u32,
    /// Requested bytes.
    pub requested: u64,
    /// Bytes that PyTorch had allocated when the request failed.
    pub allocated: u64,
    /// Bytes that PyTorch had reserved when the request failed.
    pub reserved: u64,
    /// Optimiser step in which the request failed, counted from one.
    pub step: u64,
    /// Lines of the program on the stack, innermost first.
    pub lines: Vec<String>,
    /// `true` if the request is much larger than the peak before it, and the function that made it
    /// reads kernels' results. The dry run chose these results, and one may have decided the size.
    pub is_absurd: bool,
}

/// A request for device memory that the driver or a heap refused.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Refusal {
    /// Function that the program called, such as `cudaMalloc`.
    pub function: String,
    /// Ordinal of the device.
    pub device: u32,
    /// Requested bytes.
    pub requested: u64,
    /// Free memory of the device when the request was refused.
    pub free: u64,
    /// Number of times that this place in the program made the request.
    pub times: u64,
    /// File name of the library or program that called the function.
    pub library: String,
    /// Lines of the program on the stack, innermost first. Without debug information, an entry has
    /// a function and an offset.
    pub lines: Vec<String>,
    /// Request or step that followed this request.
    pub then: Then,
    /// Bytes of the smaller request, if [`then`](Refusal::then) is [`Then::Less`]; else `None`.
    pub granted: Option<u64>,
    /// `true` if this refusal means that memory ran out.
    pub is_decisive: bool,
}

/// Request or step that shows that the program continued after a refused request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Then {
    /// No later request or step shows that the program continued.
    #[default]
    Nothing,
    /// A request of the same code for at least as many bytes followed, and was granted.
    Repeated,
    /// A smaller request followed at once, and was granted.
    Less,
    /// The program completed an optimiser step, but made none of the requests that `Repeated` and
    /// `Less` describe.
    Step,
}

/// Result of `--find-batch`: the largest value of a variable for each card.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Batch {
    /// Name of the variable.
    pub variable: String,
    /// Smallest value of the range.
    pub least: u64,
    /// Largest value of the range.
    pub most: u64,
    /// Distance between values.
    pub step: u64,
    /// The variables of `--find-batch` after the first.
    pub others: Vec<Others>,
    /// Share of a card's memory that has to stay free.
    pub margin: f64,
    /// Results, one for each card and each combination of the values of `others`.
    pub found: Vec<Found>,
    /// Number of runs.
    pub runs: u64,
}

/// A further variable of a search.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Others {
    /// Name of the variable.
    pub variable: String,
    /// Smallest value of the range.
    pub least: u64,
    /// Largest value of the range.
    pub most: u64,
}

/// Result of a search on one card.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Found {
    /// Name of the card.
    pub card: String,
    /// Values of the other variables of `--find-batch` ([`Batch::others`]) during the search, keyed
    /// by name.
    pub with: BTreeMap<String, u64>,
    /// Bytes of the card that stay free.
    pub margin: u64,
    /// Largest value of [`Batch::variable`] that fits; `None` if the smallest value does not fit.
    pub largest: Option<u64>,
}

/// Memory at the peak of allocated bytes. Sizes are those that the program requested, unrounded.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Peak {
    /// Name of the card of the run.
    pub card: String,
    /// Ordinal of the device.
    pub device: u32,
    /// Index of the peak's event in the trace.
    pub event: u64,
    /// Number of events in the trace.
    pub events: u64,
    /// Optimiser step that reached the peak, counted from one; `None` if no step completed.
    pub step: Option<u64>,
    /// Bytes in live blocks.
    pub live: u64,
    /// The lines of the program that hold the most memory.
    pub holders: Vec<Held>,
    /// Memory of the whole device by kind; empty if the hook saw no peak.
    pub kinds: Vec<KindBytes>,
    /// Live memory of each PyTorch module. The module with the most memory is first.
    pub modules: Vec<ModuleBytes>,
}

/// Kind of memory at the peak.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct KindBytes {
    /// Name of the kind, such as `gradients`.
    pub kind: String,
    /// Bytes of the kind.
    pub bytes: u64,
    /// Number of blocks; 0 for memory without blocks.
    pub blocks: u64,
}

/// Module of PyTorch, and its live memory at the peak.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ModuleBytes {
    /// Class of the outermost module, and the path from there to this module. `*` replaces numbers.
    pub module: String,
    /// Bytes in live blocks.
    pub bytes: u64,
    /// Bytes by kind.
    pub kinds: BTreeMap<String, u64>,
}

/// Line of the program, and the live memory that this line allocated.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Held {
    /// File, line and function of the innermost stack frame outside PyTorch. If no Python line
    /// allocated the memory, as in a backward pass, this is a text such as "no line of Python".
    pub line: String,
    /// Line of the program that called the function of `line`; `None` if `line` is in the program.
    pub called_from: Option<String>,
    /// Module of PyTorch; `None` outside modules.
    pub module: Option<String>,
    /// Kind of memory; `None` if it is not known.
    pub kind: Option<String>,
    /// Bytes in live blocks.
    pub bytes: u64,
    /// Number of live blocks.
    pub blocks: u64,
}

/// Memory that the program needs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Needs {
    /// Least memory with which PyTorch's allocator can run the program, in bytes.
    pub least: u64,
    /// Memory that PyTorch's allocator takes if the device has plenty of memory, in bytes.
    pub most: u64,
    /// Device memory outside PyTorch's allocator: context, kernels and libraries.
    pub beside: u64,
    /// Compute capability of the cards: major and minor.
    pub capability: (u32, u32),
    /// Smallest cards of the catalogue on which the program fits unchanged. These cards have the
    /// run's compute capability.
    pub cards: Vec<String>,
    /// Smallest card with enough memory, if it is smaller than all of `cards`. It has another
    /// compute capability, so the program may need a different amount of memory.
    pub smaller: Option<String>,
}

/// A setting of PyTorch's allocator that reduces the memory that a program takes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Remedy {
    /// Text to type in front of the program's command line.
    pub line: String,
    /// Memory that the allocator takes with this setting.
    pub reserved: Option<u64>,
    /// `true` if the program fits only with this setting.
    pub makes_it_fit: bool,
}

/// A remedy, and the memory that the program takes with it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Trial {
    /// Name of the remedy.
    pub remedy: String,
    /// The remedy in words.
    pub title: String,
    /// Text to type.
    pub line: String,
    /// Peak of allocated bytes; `None` if it is not known.
    pub allocated: Option<u64>,
    /// Peak of reserved bytes; `None` if it is not known.
    pub reserved: Option<u64>,
    /// Peak of memory in use on a device with more memory than any card; `None` if the program
    /// failed.
    pub in_use: Option<u64>,
    /// `true` if the program fits with the remedy. The test uses the first card that is too small
    /// without the remedy, or the first card if none is too small. `None` if unknown.
    pub fits: Option<bool>,
    /// Smallest cards on which the program fits with the remedy, smallest first. Only cards with
    /// the run's compute capability are listed.
    pub cards: Vec<String>,
    /// `true` if the figures are estimates: the program was not run with the remedy.
    pub is_estimate: bool,
    /// Seconds that the run took.
    pub seconds: f64,
    /// Last line of the error if the program failed, else empty.
    pub error: String,
}

/// Memory that cuDNN's benchmark mode adds, and results of runs with that mode on smaller cards.
/// Figures are in bytes, for the device with the highest peak.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Benchmark {
    /// Largest workspace among the plans that benchmark mode timed, in bytes.
    pub workspace: u64,
    /// Peak of allocated bytes with benchmark mode; `None` without PyTorch.
    pub with: Option<u64>,
    /// Peak of allocated bytes in a run without benchmark mode; `None` if it did not complete.
    pub without: Option<u64>,
    /// Results of runs with benchmark mode, each on a card that has less memory than the program's
    /// peak.
    pub tried: Vec<BenchmarkRun>,
}

/// Result of a run with cuDNN's benchmark mode, on a card that has less memory than the program's
/// peak.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BenchmarkRun {
    /// Name of the card.
    pub card: String,
    /// Outcome on the card.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// Peak of allocated bytes; `None` without PyTorch.
    pub allocated: Option<u64>,
    /// Peak of memory in use; `None` if the driver wrote no report.
    pub in_use: Option<u64>,
}

impl Benchmark {
    /// Returns the result on the smallest card on which the program fits.
    pub fn smallest(&self) -> Option<&BenchmarkRun> {
        // The search continues with smaller cards after a fit, so the last fit is the smallest.
        self.tried.iter().rev().find(|run| run.outcome.is_fit())
    }
}

/// Number of elements that operators such as `nonzero` find in a dry run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Counts {
    /// The largest number that the tensor allows.
    #[default]
    Largest,
    /// At most this number.
    AtMost(u64),
}

/// Peaks of the program in the two extreme cases: operators such as `nonzero` find as many elements
/// as possible, or as few as possible.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ResultRange {
    /// Peaks of the run in which operators such as `nonzero` find as many elements as their tensors
    /// allow.
    pub largest: RangeEnd,
    /// Peaks of the run in which operators such as `nonzero` find as few elements as the program
    /// can run with.
    pub smallest: RangeEnd,
    /// Peaks of further runs. In each of them, operators find few elements at one line only. The
    /// line that read first comes first.
    pub lines: Vec<LineRange>,
    /// Number of lines that have no entry in `lines`, although a size depended on a result there.
    pub lines_left: u64,
}

/// Peaks of a run in which operators such as `nonzero` find few elements at one line only.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LineRange {
    /// File, line and function.
    pub line: String,
    /// Peaks of the run in which operators at this line find as few elements as the program can run
    /// with.
    #[serde(flatten)]
    pub end: RangeEnd,
}

/// Peaks of one run of a [`ResultRange`], in bytes. A peak is the highest of all devices.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RangeEnd {
    /// Number of elements that operators such as `nonzero` found in the run.
    pub counts: Counts,
    /// Outcome of the run.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// Peak of allocated bytes; `None` without PyTorch.
    pub allocated: Option<u64>,
    /// Peak of reserved bytes; `None` without PyTorch.
    pub reserved: Option<u64>,
    /// Peak of memory in use; `None` if the driver wrote no report.
    pub in_use: Option<u64>,
}

/// Reads and calls whose results a dry run cannot know.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Unknown {
    /// Number of copies of results to the host.
    pub reads: u64,
    /// Lines with the most copies to the host; empty if no Python hook watched the copies.
    pub lines: Vec<Read>,
    /// Lines that read a result on which the size of a tensor depends, the most frequent first.
    pub sizes: Vec<SizeRead>,
    /// Number of kernel launches that were dropped.
    pub launches: u64,
    /// Number of reads of the device's free memory. The program may choose sizes by that figure.
    pub asked_for_free_memory: u64,
    /// Lines about functions and features that the emulated libraries did not model.
    pub libraries: Vec<String>,
}

/// A line of the program that reads from the device.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Read {
    /// File, line and function.
    pub line: String,
    /// Number of reads.
    pub times: u64,
    /// Last value that the dry run chose in place of a kernel's result. `None` if the line read
    /// only data that the program had uploaded.
    pub value: Option<String>,
}

/// A line at which an operator read a result and chose a size by it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SizeRead {
    /// File, line and function.
    pub line: String,
    /// Name of PyTorch's operator, such as `nonzero`.
    pub operator: String,
    /// Number of reads.
    pub times: u64,
    /// Last value that the dry run chose in place of a kernel's result. `None` if the line read
    /// only data that the program had uploaded.
    pub value: Option<String>,
    /// `true` if each result is a count of elements, and the dry run chose the largest count that
    /// the tensor allows.
    pub is_bound: bool,
}

impl Batch {
    /// Returns a result with an empty list [`found`](Batch::found), for the start of a search.
    pub(crate) fn new(range: &FindBatch, others: &[FindBatch], margin: f64) -> Batch {
        let FindBatch { variable, least, most, step } = range.clone();
        let other = |range: &FindBatch| Others {
            variable: range.variable.clone(),
            least: range.least,
            most: range.most,
        };
        let others = others.iter().map(other).collect();
        Batch { variable, least, most, step, others, margin, found: Vec::new(), runs: 0 }
    }
}

impl Verdict {
    /// Returns the worst outcome of all cards. If a search found values for some cards, returns the
    /// worst outcome of those cards. If the command was interrupted, never returns that the program
    /// fits.
    pub fn outcome(&self) -> Outcome {
        let interrupted = Outcome::NoVerdict(Reason::Interrupted);
        let of_all = || self.cards.iter().map(|card| card.outcome);
        let found = self.batch.iter().flat_map(|batch| &batch.found);
        let has_value = found.filter(|found| found.largest.is_some()).count() > 0;
        let of_found = of_all().filter(|outcome| has_value && outcome.is_fit()).max();
        let outcome = of_found.or(of_all().max()).unwrap_or(interrupted);
        if self.is_interrupted && outcome.is_fit() { interrupted } else { outcome }
    }
}
