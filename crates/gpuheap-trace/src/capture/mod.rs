//! gpuheap's own capture of a process: append-only, readable after a crash.
//!
//! A file is the magic, the version, and records: a tag, then fields as LEB128 numbers and texts. A
//! writer that fills a mapped file stores the tag of a record last, and an unused rest is zeros. So
//! the records before a tag of 0 are whole, even if the process was killed within a call.
//!
//! | record | is |
//! |---|---|
//! | `Process`, `Device`, `Module` | facts for all records after it |
//! | `Text`, `Frame`, `Stack`, `ThreadStart` | get the next number of their kind; events name it |
//! | `Allocate`, `Free`, `FreeFailed`, `Fail` | events of memory |
//! | `ThreadEnd`, `DriverMemory`, `End` | other events |

mod field;
mod read;
mod record;
mod symbols;
mod write;

pub use field::{Address, DecodeError, Deltas, Time};
pub(crate) use read::read;
pub(crate) use record::MAGIC;
pub use record::{Record, header};
pub use write::CaptureWriter;
