//! Verdict of a dry run, as data. Sizes are bytes.

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
    /// Result of the search for the largest value; `None` without a search.
    pub batch: Option<Batch>,
    /// Memory at the peak; `None` if nothing was recorded.
    pub peak: Option<Peak>,
    /// Memory that the program needs, by a replay of its trace; `None` if nothing was recorded.
    pub needs: Option<Needs>,
    /// Peak of memory in use on a device with memory to spare; `None` if a card fits, or the
    /// program does not get through there either.
    pub with_room: Option<u64>,
    /// `true` if peaks, needs and remedies are lower bounds: the trace ends where memory ran out,
    /// or results decided sizes.
    pub is_lower_bound: bool,
    /// Settings of the allocator with which the program fits, or takes less.
    pub remedies: Vec<Remedy>,
    /// Figures that a dry run cannot know, and the number of times that the program read them.
    pub unknown: Unknown,
    /// Lines on things that were missing or unexpected.
    pub notes: Vec<String>,
    /// Command to type next.
    pub next: Option<String>,
    /// `true` if a signal ended the command before all was run.
    pub is_interrupted: bool,
}

/// Result on one card.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CardResult {
    /// Name of the card.
    pub card: String,
    /// Memory as the driver reports it.
    pub total: u64,
    /// Memory that a program can take: all but the context's.
    pub usable: u64,
    /// `true` if a figure of the card is an estimate.
    pub is_estimated: bool,
    /// Outcome.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// `true` if the outcome comes from a replay of another card's trace.
    pub is_replayed: bool,
    /// End of the program; `None` if it was not run.
    pub ended: Option<Ended>,
    /// Processes that used a device.
    pub processes: Vec<ProcessResult>,
    /// Seconds that the run took.
    pub seconds: f64,
    /// Last lines of standard error, if the program failed and its output was dropped.
    pub errors: String,
}

/// End of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// It ended by itself, with this status.
    Exit(i32),
    /// A signal ended it.
    Signal(i32),
    /// It was ended at the time limit.
    TimeLimit,
    /// It was ended because a signal ended the command.
    Interrupted,
}

/// Outcome on a card, from the best to the worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(tag = "outcome", content = "reason", rename_all = "snake_case")]
pub enum Outcome {
    /// The program got through, as far as it was run.
    Fits,
    /// The program got through, but results that a dry run does not have decided sizes.
    FitsAsFarAsKnown,
    /// Device memory and managed memory together are more than the device has. The program runs on
    /// Linux, and pages move between host and device; under WSL2 and on Windows it fails.
    Oversubscribed,
    /// Memory ran out.
    DoesNotFit,
    /// Nothing can be said.
    NoVerdict(Reason),
}

/// Reason why nothing can be said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The program was ended at the time limit, and had done no optimiser step.
    NoStep,
    /// A signal ended the command.
    Interrupted,
    /// No process took memory of a GPU.
    NoGpuUsed,
    /// The program's CUDA runtime is linked statically, so that no stand-in can take its place.
    StaticRuntime,
    /// The program failed for another reason than memory.
    Failed,
}

impl Outcome {
    /// Returns `true` if the program got through, as far as is known.
    pub fn is_fit(self) -> bool {
        matches!(self, Outcome::Fits | Outcome::FitsAsFarAsKnown)
    }

    /// Returns the name that the JSON has.
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

/// Figures of a process.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ProcessResult {
    /// Id of the process.
    pub pid: u32,
    /// Rank in a group of processes; `None` if it has none.
    pub rank: Option<String>,
    /// Version of PyTorch; `None` if the process has none.
    pub torch: Option<String>,
    /// Optimiser steps that were done.
    pub steps: u64,
    /// Devices that it used.
    pub devices: Vec<DeviceResult>,
    /// First requests of PyTorch that failed.
    pub failures: Vec<Failure>,
    /// Requests for device memory that the driver refused, the first of each place.
    pub refused: Vec<Refusal>,
    /// Number of requests that failed, of PyTorch's or else of the driver's.
    pub failed: u64,
}

/// Figures of a process on a device.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct DeviceResult {
    /// Number of the device.
    pub device: u32,
    /// Peak of requested bytes; `None` without PyTorch.
    pub requested: Option<u64>,
    /// Peak of allocated bytes; `None` without PyTorch.
    pub allocated: Option<u64>,
    /// Peak of reserved bytes; `None` without PyTorch.
    pub reserved: Option<u64>,
    /// Number of PyTorch's allocations.
    pub allocations: Option<u64>,
    /// Step of the peak, counted from one.
    pub step: Option<u64>,
    /// Peak of memory in use on the device, with the context; `None` if the driver has not
    /// reported.
    pub in_use: Option<u64>,
    /// Peak of managed memory; `None` if the driver has not reported.
    pub managed: Option<u64>,
    /// Peak of memory in use and managed memory together; `None` if the driver has not reported.
    pub demand: Option<u64>,
}

/// Request that failed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Failure {
    /// Number of the device.
    pub device: u32,
    /// Requested bytes.
    pub requested: u64,
    /// Allocated bytes at that time.
    pub allocated: u64,
    /// Reserved bytes at that time.
    pub reserved: u64,
    /// Step, counted from one.
    pub step: u64,
    /// Lines of the program, innermost first.
    pub lines: Vec<String>,
}

/// Request for device memory that the driver or a heap refused.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Refusal {
    /// Function that the program called, such as `cudaMalloc`.
    pub function: String,
    /// Number of the device.
    pub device: u32,
    /// Requested bytes.
    pub requested: u64,
    /// Free memory of the device at that time.
    pub free: u64,
    /// Number of times that the place made the request.
    pub times: u64,
    /// File of the library or program that made the call.
    pub library: String,
    /// Lines of the program, innermost first; functions and offsets without debug information.
    pub lines: Vec<String>,
    /// Request that followed.
    pub then: Then,
    /// Bytes of the smaller request that followed; `None` for another one.
    pub granted: Option<u64>,
    /// `true` if memory ran out by it.
    pub is_decisive: bool,
}

/// Request that followed a refused one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Then {
    /// None that makes it good.
    #[default]
    Nothing,
    /// One of the same place for as many bytes. It was granted.
    Repeated,
    /// A smaller one at once. It was granted.
    Less,
    /// None, but the program did another step of its optimiser.
    Step,
}

/// Result of a search for the largest value.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Batch {
    /// Name of the variable.
    pub variable: String,
    /// Smallest value of the range.
    pub least: u64,
    /// Largest value of the range.
    pub most: u64,
    /// Results, one for each card.
    pub found: Vec<Found>,
    /// Number of runs.
    pub runs: u64,
}

/// Largest value with which the program fits on a card.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Found {
    /// Name of the card.
    pub card: String,
    /// The value; `None` if the smallest does not fit.
    pub largest: Option<u64>,
}

/// Memory at the peak of allocated bytes, as requested.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Peak {
    /// Card of the run.
    pub card: String,
    /// Number of the device.
    pub device: u32,
    /// Number of the event in the trace.
    pub event: u64,
    /// Number of events in the trace.
    pub events: u64,
    /// Step, counted from one; `None` if the program has no optimiser.
    pub step: Option<u64>,
    /// Live bytes.
    pub live: u64,
    /// Holders of the most memory.
    pub holders: Vec<Held>,
}

/// Line of the program, and the memory that it allocated.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Held {
    /// Line and function.
    pub line: String,
    /// Live bytes.
    pub bytes: u64,
    /// Number of blocks.
    pub blocks: u64,
}

/// Memory that the program needs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Needs {
    /// Least memory for PyTorch's allocator on a device.
    pub least: u64,
    /// Memory that the allocator takes if there is room.
    pub most: u64,
    /// Memory beside: context, kernels and libraries.
    pub beside: u64,
    /// Compute capability of the cards: major and minor.
    pub capability: (u32, u32),
    /// Smallest cards of the catalogue on which it fits as it is, of the run's compute capability.
    pub cards: Vec<String>,
}

/// Setting that helps.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Remedy {
    /// Line to type before the program.
    pub line: String,
    /// Memory that the allocator takes with it.
    pub reserved: Option<u64>,
    /// `true` if the program fits with it and not without.
    pub makes_it_fit: bool,
}

/// Gaps of a dry run.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Unknown {
    /// Copies of results to the host, all of them 0.
    pub reads: u64,
    /// Lines with the most reads; empty if they were not watched.
    pub lines: Vec<Read>,
    /// Reads that decided a size, with the most frequent first.
    pub sizes: Vec<SizeRead>,
    /// Launches of kernels that were not run.
    pub launches: u64,
    /// Questions for the device's free memory, after which a program may choose its sizes.
    pub asked_for_free_memory: u64,
    /// Lines of libraries on functions and features that they did not model.
    pub libraries: Vec<String>,
}

/// Line that reads from the device.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Read {
    /// File, line and function.
    pub line: String,
    /// Number of reads.
    pub times: u64,
}

/// Read of a result by which an operator chose a size.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SizeRead {
    /// File, line and function.
    pub line: String,
    /// Name of PyTorch's operator, such as `nonzero`.
    pub operator: String,
    /// Number of reads.
    pub times: u64,
}

impl Batch {
    /// Returns the result of a search before its first run.
    pub(crate) fn new(range: &FindBatch) -> Batch {
        let FindBatch { variable, least, most } = range.clone();
        Batch { variable, least, most, found: Vec::new(), runs: 0 }
    }
}

impl Verdict {
    /// Returns the worst outcome of all cards. With a search, returns the worst of the cards for
    /// which a value was found, if there is such a card. A command that was interrupted found no
    /// fit.
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
