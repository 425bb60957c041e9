//! Runs a program on an emulated GPU whose kernels do nothing, and reports the memory that the
//! program would take on a real GPU.
//!
//! The program loads an emulated driver, CUDA runtime and libraries in place of the vendor's. No
//! GPU is needed, and no real GPU is used. The program keeps its own allocator, so it makes the
//! requests that it would make on a real device. Kernels have no results, so the dry run chooses
//! the values that the program reads from the device. It chooses a count of elements, such as the
//! count of `nonzero`, as large as possible.
//!
//! [`dry_run`] runs the program on each card of the options, and returns a [`Verdict`]. This crate
//! prints nothing.

mod batch;
mod benchmark;
mod card;
mod devices;
mod emulate;
mod environment;
mod error;
mod explain;
mod folder;
mod frameworks;
#[cfg(fuzzing)]
mod fuzzing;
mod judge;
mod outcome;
mod program;
mod reports;
mod results;
mod runs;
mod shell;
mod signals;
mod stand_ins;
mod trial;
mod verdict;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use gpuheap_replay::cards::Card;

pub use crate::batch::FindBatch;
pub use crate::card::{Device, MARGIN};
pub use crate::emulate::{Emulation, emulate, emulate_with_runtime, run_passing_signals};
pub use crate::error::Error;
pub use crate::frameworks::FrameworkHooks;
#[cfg(fuzzing)]
pub use crate::fuzzing::judge_reports;
pub use crate::results::SetResult;
pub use crate::runs::dry_run;
pub use crate::stand_ins::{FOLDER, StandIns, folders};
pub use crate::verdict::{
    Batch, Benchmark, BenchmarkRun, CardResult, Counts, DeviceResult, DeviceVerdict, Ended,
    Failure, Found, Held, KindBytes, LineRange, ModuleBytes, Needs, Others, Outcome, Peak,
    ProcessResult, RangeEnd, Read, Reason, Refusal, Remedy, ResultRange, SizeRead, Then, Trial,
    Unknown, User, Verdict,
};

/// Options of a dry run.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The program: a path, or a name to search in `PATH`.
    pub program: OsString,
    /// Arguments of the program.
    pub arguments: Vec<OsString>,
    /// Cards to run on. The first run is alone, and the other cards' runs follow in parallel.
    pub cards: Vec<&'static Card>,
    /// Number of identical devices.
    pub devices: u32,
    /// Total memory that the driver reports for each device, in bytes; `None` for the card's
    /// memory.
    pub memory: Option<u64>,
    /// Number of optimiser steps after which a Python program is ended; `None` for no limit.
    pub steps: Option<u64>,
    /// Time after which the program is ended. A program with optimiser steps is ended at the end of
    /// a step.
    pub time_limit: Option<Duration>,
    /// Variables to search; empty for no search. For each combination of the other variables'
    /// values, the search finds the largest value of the first variable that lets the program fit.
    pub find_batch: Vec<FindBatch>,
    /// Share of each card's memory that stays free, such as [`MARGIN`].
    pub margin: f64,
    /// Cases in which the dry run tries remedies, such as gradient checkpoints.
    pub remedies: Remedies,
    /// `true` to run the program only on the first card of each compute capability, and to replay
    /// that run's trace for the other cards.
    pub quick: bool,
    /// `true` to count a program as fitting even if its managed memory exceeds the device's memory.
    pub allow_oversubscription: bool,
    /// Values that the user sets in place of kernels' results, each for one line of the program.
    pub results: Vec<SetResult>,
    /// Number of elements that operators such as `nonzero` find in the dry run.
    pub counts: Counts,
    /// `true` to run the program again if sizes of tensors depended on kernels' results. In one
    /// further run, operators such as `nonzero` find few elements at all lines. In each run after
    /// that, they find few elements at one line only.
    pub read_range: bool,
    /// File to write the recorded trace to; `None` to write no trace.
    pub trace: Option<PathBuf>,
    /// Folder of the emulated libraries; `None` to search for the folder.
    pub stand_ins: Option<PathBuf>,
}

/// Cases in which a dry run tries remedies. The program runs once more with each remedy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Remedies {
    /// Tries remedies if the program does not fit and its run took at most a minute.
    #[default]
    Auto,
    /// Tries remedies whether or not the program fits. Tries none if the dry run has no verdict for
    /// a card.
    Always,
    /// Tries no remedy.
    Never,
}

/// Receiver of messages during a dry run.
pub trait Progress: Sync {
    /// Receives a line that the user should see at once.
    fn note(&self, line: &str);
}
