//! An emulated CUDA device over host memory: capacity, time, faults, checks.

mod api;
mod args;
mod check;
mod dispatch;
mod emulator;
mod engine;
mod fault;
mod handles;
mod options;
mod profile;
mod state;
mod worker;

pub use check::{Finding, FindingKind};
pub use emulator::{Emulator, Usage, with_per_thread_default_stream};
pub use fault::{Fault, FaultPlan};
pub use options::{Options, Schedule};
pub use profile::Profile;

/// What a call comes to: nothing more to say, or a code.
pub(crate) type Outcome<T = ()> = Result<T, gpuheap_driver::CUresult>;
