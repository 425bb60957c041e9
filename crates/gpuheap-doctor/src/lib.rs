//! Finds who holds GPU memory, and why it does not come back.
//!
//! Everything is read through a [`Source`]: this machine ([`Here`]: NVML, `/proc`, the kernel's
//! log) or a [`Recording`] of one, which a [`Recorder`] writes. [`Machine::read`] turns a source
//! into facts, and everything else is a function of these facts:
//!
//! * [`status::of`] accounts for the memory of each device, by process.
//! * [`diagnose`] has every rule look, and reports what they find ([`RULES`]); [`markdown`] renders
//!   that for others to read, and [`Baseline`] compares it with an earlier time.
//! * [`explain_error`] reads the text of a program that ran out of memory.
//! * [`free::plan`] says what would give memory back.
//!
//! No CUDA context is created, so that looking changes nothing. A fact that cannot be read is left
//! out with its reason ([`Skipped`]); it is never guessed.
//!
//! ```
//! use gpuheap_doctor::{Machine, Recording, status};
//!
//! let recording = Recording::parse(
//!     "== nvml\n\
//!      {\"driver\": \"580.95\", \"devices\": [{\"name\": \"NVIDIA T4\", \"total\": 16106127360,\n\
//!      \"used\": 104857600, \"free\": 16001269760}]}\n",
//! )?;
//! let machine = Machine::read(recording);
//! let accounts = status::of(&machine);
//! assert_eq!(accounts[0].unaccounted_bytes, 100 << 20);
//! # Ok::<(), gpuheap_doctor::RecordingError>(())
//! ```

#![deny(unsafe_code)]

mod ask;
mod baseline;
mod doctor;
mod evidence;
pub mod free;
pub mod machine;
mod markdown;
mod oom;
mod rule;
mod rules;
mod source;
pub mod status;
mod topics;
mod words;

pub use ask::ask;
pub use baseline::{Baseline, Figures};
pub use doctor::{Report, diagnose};
pub use machine::Machine;
pub use markdown::markdown;
pub use oom::{Explanation, explain_error};
pub use rule::{Finding, Rule, Severity};
pub use rules::RULES;
pub use source::{Here, Recorder, Recording, RecordingError, Skipped, Source, Why};
pub use topics::{TOPICS, explain_topic};
