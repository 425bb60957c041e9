//! Reader of gpuheap's own captures. Crate gpuheap-capture defines the format and its writers.
//!
//! ```
//! use gpuheap_trace::capture::{Address, CaptureWriter, Record, Time};
//! use gpuheap_trace::{MemoryKind, ReadOptions, read_bytes};
//!
//! let mut file = Vec::new();
//! let mut writer = CaptureWriter::new(&mut file)?;
//! writer.write(&Record::ThreadStart { time: Time(0), id: 7, name: "main" })?;
//! writer.write(&Record::Allocate {
//!     time: Time(10),
//!     thread: 1,
//!     kind: MemoryKind::Device,
//!     device: 0,
//!     stream: 0,
//!     address: Address(0x7f00_0000_0000),
//!     bytes: 4096,
//!     stack: 0,
//! })?;
//! let traces = read_bytes("run.gph", &file, &ReadOptions::default())?;
//! assert_eq!(traces[0].summary().peak_live_bytes, 4096);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod event;
mod pools;
mod read;
mod symbols;

pub(crate) use gpuheap_capture::MAGIC;
pub use gpuheap_capture::{
    Address, CaptureWriter, Count, DecodeError, Deltas, Record, Time, header,
};
pub(crate) use read::read;
