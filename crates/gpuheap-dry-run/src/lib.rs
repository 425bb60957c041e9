//! Runs a program on an emulated GPU whose kernels do nothing, and reports the memory that it would
//! take of a real one.
//!
//! The program loads an emulated driver, CUDA runtime and libraries in place of the vendor's. No
//! GPU is needed, and a real one is not touched. The program keeps its own allocator, so it
//! requests the memory that it would request of a real device. Results are 0, so sizes that depend
//! on results are unknown.
//!
//! [`dry_run`] runs the program on each card of the options, and returns a [`Verdict`]. This crate
//! prints nothing.

mod batch;
mod card;
mod emulate;
mod environment;
mod error;
mod explain;
mod folder;
mod judge;
mod outcome;
mod program;
mod reports;
mod runs;
mod shell;
mod signals;
mod stand_ins;
mod verdict;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use gpuheap_replay::cards::Card;

pub use crate::batch::FindBatch;
pub use crate::card::Device;
pub use crate::emulate::{Emulation, emulate};
pub use crate::error::Error;
pub use crate::runs::dry_run;
pub use crate::stand_ins::{FOLDER, StandIns};
pub use crate::verdict::{
    Batch, CardResult, DeviceResult, Ended, Failure, Found, Held, Needs, Outcome, Peak,
    ProcessResult, Read, Reason, Refusal, Remedy, SizeRead, Then, Unknown, Verdict,
};

/// Options of a dry run.
#[derive(Debug, Clone)]
pub struct Options {
    /// The program: a path, or a name that `PATH` has.
    pub program: OsString,
    /// Arguments of the program.
    pub arguments: Vec<OsString>,
    /// Cards to run on, one after another.
    pub cards: Vec<&'static Card>,
    /// Number of devices, all alike.
    pub devices: u32,
    /// Memory of each device as the driver reports it, bytes; `None` for the card's own.
    pub memory: Option<u64>,
    /// Optimiser steps after which a Python program is ended; `None` for no end.
    pub steps: Option<u64>,
    /// Time after which the program is ended, at the end of a step if it has steps.
    pub time_limit: Option<Duration>,
    /// Search for the largest value of a variable with which the program fits.
    pub find_batch: Option<FindBatch>,
    /// `true` to run on the first card of each compute capability, and to replay its trace for the
    /// others.
    pub quick: bool,
    /// `true` if a program fits whose managed memory is more than the device has.
    pub allow_oversubscription: bool,
    /// File for the recorded trace.
    pub trace: Option<PathBuf>,
    /// Folder of the emulated libraries; `None` to look for them.
    pub stand_ins: Option<PathBuf>,
}

/// Receiver of messages while a dry run is under way.
pub trait Progress: Sync {
    /// Takes a line that the user should see at once.
    fn note(&self, line: &str);
}
