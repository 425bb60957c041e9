//! Replays allocation traces through models of the allocators that programs use.
//!
//! A model follows the rules of the allocator that it is named after. It decides which bytes a
//! request gets, when memory is taken from the driver, and when a request fails. It needs no GPU
//! and no driver. So a recorded program can be run again under other settings, or on another
//! device:
//!
//! ```
//! use gpuheap_replay::models::torch::{Settings, Torch};
//! use gpuheap_replay::{Model, Program, Request};
//! use gpuheap_trace::{ReadOptions, read_bytes};
//!
//! let log = "Thread,Time,Action,Pointer,Size,Stream\n\
//!            7,10:00:00.000001,allocate,0x7f0000000000,3000000,0x0\n\
//!            7,10:00:00.000005,free,0x7f0000000000,3000000,0x0\n";
//! let traces = read_bytes("small.csv", log.as_bytes(), &ReadOptions::default())?;
//!
//! let settings: Settings = "expandable_segments:True".parse()?;
//! let mut model = Torch::new(settings, 16 << 30);
//! let outcome = Program::from_trace(&traces[0]).run(&mut model);
//! assert!(outcome.failure.is_none());
//! assert_eq!(outcome.figures.peak_reserved, 20 << 20);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod budget;
pub mod cards;
mod cores;
mod gaps;
pub mod json;
pub mod models;
pub mod moment;
mod program;
mod recorded;
pub mod replay;
pub mod report;
mod reproduction;
pub mod run;
pub mod text;
pub mod tune;
pub mod verdict;

pub use gaps::Gap;
pub use models::{DriverEvent, Figures, Model, Refusal, Request, Ticket};
pub use program::{Completion, Failure, Outcome, PeakRange, Program};
pub use reproduction::Reproduction;
