//! Reports of recorded GPU allocations. They show holders of memory at a moment, source lines with
//! growing memory, blocks that are never freed, and blocks that are freed at once. This crate has
//! no CUDA code and needs no GPU.
//!
//! ```
//! use gpuheap_report::{At, Report, text};
//! use gpuheap_trace::{ReadOptions, read_bytes};
//!
//! let log = "Thread,Time,Action,Pointer,Size,Stream\n\
//!            7,10:00:00.000001,allocate,0x7f0000000000,1000,0x0\n\
//!            8,10:00:00.000002,allocate,0x7f0000000400,500,0x0\n\
//!            7,10:00:00.000005,free,0x7f0000000000,1000,0x0\n";
//! let traces = read_bytes("small.csv", log.as_bytes(), &ReadOptions::default())?;
//! let report = Report::new(&traces[0], At::Peak)?;
//! assert_eq!(report.held_bytes(), 1500);
//! assert_eq!(report.left_by_thread[0].name, "thread 8");
//! assert!(text::render(&report).contains("500 bytes"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod calls;
mod compare;
mod copies;
mod growth;
mod holders;
pub mod html;
pub mod json;
mod ledger;
mod moment;
pub mod perfetto;
mod pools;
mod ranges;
mod report;
mod stacks;
mod temporary;
pub mod text;
mod view;

pub use compare::{Change, Comparison};
pub use copies::CopySite;
pub use gpuheap_trace::Holder;
pub use growth::{Growth, PARTS, WARM_UP};
pub use holders::KeptStack;
pub use ledger::SiteKind;
pub use moment::At;
pub use pools::{Pools, Segment};
pub use ranges::RangeMemory;
pub use report::Report;
pub use stacks::{folded, speedscope};
pub use temporary::Temporary;
