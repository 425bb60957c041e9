//! Diagnoses GPU memory. Finds the holders of memory, and the reasons why memory is not freed.
//!
//! All facts come from a [`Source`]. [`Here`] reads NVML, `/proc` and the kernel's log of this
//! machine. A [`Recording`] has the facts of another machine. A [`Recorder`] writes recordings.
//! [`Machine::read`] reads the facts once. The rest of the crate uses these facts:
//!
//! * [`status::accounts`] accounts for the memory of each device, by process.
//! * [`diagnose`] runs all rules ([`RULES`]) and reports their findings. [`markdown`] renders the
//!   report for others to read.
//! * [`explain_error`] explains the text of an out-of-memory error.
//! * [`free::plan`] lists steps that would give memory back.
//! * [`pause::Pause`] moves a process's device memory to the host, and back.
//!
//! No CUDA context is created, so a diagnosis changes nothing. A fact that cannot be read is left
//! out with the reason ([`Skipped`]). No fact is guessed.
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
//! let accounts = status::accounts(&machine);
//! assert_eq!(accounts[0].unaccounted_bytes, 100 << 20);
//! # Ok::<(), gpuheap_doctor::RecordingError>(())
//! ```

#![deny(unsafe_code)]

use serde::Serialize;

mod doctor;
mod evidence;
mod facts;
pub mod free;
pub mod machine;
mod markdown;
mod oom;
pub mod pause;
mod rule;
mod rules;
mod source;
pub mod status;
mod topics;

pub use doctor::{Report, diagnose};
pub use facts::{Skipped, Source, Why};
pub use machine::Machine;
pub use markdown::markdown;
pub use oom::{Explanation, explain_error};
pub use rule::{Finding, Rule, Severity};
pub use rules::RULES;
pub use source::{Here, KeptNvml, Recorder, Recording, RecordingError};
pub use topics::{TOPICS, Topic};

/// Renders a command's output as JSON, and adds the version of the JSON's fields.
fn json(document: &impl Serialize) -> String {
    #[derive(Serialize)]
    struct Versioned<'a, T> {
        schema: u32,
        #[serde(flatten)]
        document: &'a T,
    }
    // Serialization of numbers, texts and lists never fails.
    serde_json::to_string_pretty(&Versioned { schema: 1, document }).unwrap_or_default() + "\n"
}
