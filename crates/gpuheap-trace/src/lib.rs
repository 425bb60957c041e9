//! GPU allocation traces: one event model, with readers and writers for the file formats of other
//! programs. This crate does not use CUDA and needs no GPU.
//!
//! | format | read | written | from |
//! |---|---|---|---|
//! | gpuheap's capture | yes | [`capture::CaptureWriter`] | `gpuheap run` |
//! | RMM's CSV log | yes | [`write_rmm_csv`] | `rmm` with logging on, or any tool that writes its columns |
//! | PyTorch memory snapshot | yes | [`write_pytorch_snapshot`] | `torch.cuda.memory._dump_snapshot` |
//!
//! The content of a file, not its name, decides the format. A file may be gzipped. The reader finds
//! the allocation of each free. So a consumer walks [`Event`]s with dense allocation numbers, and
//! needs no map of pointers:
//!
//! ```
//! use gpuheap_trace::{Op, ReadOptions, read_bytes};
//!
//! let log = "Thread,Time,Action,Pointer,Size,Stream\n\
//!            7,10:00:00.000001,allocate,0x7f0000000000,1000,0x0\n\
//!            7,10:00:00.000002,allocate,0x7f0000000400,500,0x0\n\
//!            7,10:00:00.000005,free,0x7f0000000000,1000,0x0\n";
//! let traces = read_bytes("small.csv", log.as_bytes(), &ReadOptions::default())?;
//! let trace = &traces[0]; // a log holds one trace, a snapshot one for every device it saw
//!
//! let mut live = vec![0_u64; trace.allocations() as usize];
//! for event in trace.events() {
//!     match event.op {
//!         Op::Allocate { allocation, bytes } => live[allocation as usize] = bytes,
//!         Op::Free { allocation } => live[allocation as usize] = 0,
//!         _ => {}
//!     }
//! }
//! assert_eq!(live, [0, 500]);
//!
//! let summary = trace.summary();
//! assert_eq!(summary.events, 3);
//! assert_eq!(summary.peak_live_bytes, 1500);
//! assert_eq!(summary.left_live, 1);
//! # Ok::<(), gpuheap_trace::Error>(())
//! ```

pub mod capture;
mod error;
mod input;
mod model;
mod options;
mod rmm;
mod snapshot;
mod source;

pub use error::{Error, Place};
pub use input::{open, read, read_bytes, read_from};
pub use model::{
    AllocatorSettings, At, Copies, CopyDirection, CopyMemory, Coverage, Event, FoldedPairs, Format,
    Frame, Holder, MemoryKind, Op, Range, RecordedDevice, Recording, RecordingEnd, Segment,
    SnapshotKeys, StreamInfo, Summary, Taken, ThreadInfo, Trace, TraceBuilder, Warning,
    WarningKind, hint,
};
pub use options::ReadOptions;
pub use rmm::write_rmm_csv;
pub use snapshot::write_pytorch_snapshot;
