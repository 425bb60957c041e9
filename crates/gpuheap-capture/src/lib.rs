//! Reads and writes gpuheap's captures of processes. They are append-only and readable after a
//! crash.
//!
//! A file is the magic, the version and the records. A record is a tag, then its fields as LEB128
//! numbers and texts. In a mapped file, the writer stores a record's tag last, and the unused rest
//! is zeros. All records before the first tag of 0 are therefore whole, even if the process was
//! killed during a write.
//!
//! | record | content |
//! |---|---|
//! | `Process`, `Device`, `Module` | facts for all later records |
//! | `Text`, `Frame`, `Stack`, `ThreadStart`, `RangeStart` | entries, numbered by kind; events refer to these numbers |
//! | `Allocate`, `Free`, `FreeFailed`, `Fail` | memory events |
//! | `Folded` | count of allocations that were freed immediately; updated in place |
//! | `Map`, `Unmap` | mappings of physical memory, recorded only with blocks of pools |
//! | `ThreadEnd`, `RangeEnd`, `LostRanges`, `DriverMemory`, `Copies`, `End` | other events |

mod cpython;
mod field;
#[cfg(target_os = "linux")]
mod folding;
mod kind;
#[cfg(target_os = "linux")]
mod mapped_file;
#[cfg(target_os = "linux")]
mod modules;
#[cfg(target_os = "linux")]
mod process;
mod record;
mod stream;

pub use cpython::{CPython, LineTable};
pub use field::{Address, Count, DecodeError, Deltas, Time};
pub use kind::{CopyDirection, CopyMemory, MemoryKind};
#[cfg(target_os = "linux")]
pub use modules::{LoadedModule, loaded_modules, program};
#[cfg(target_os = "linux")]
pub use process::{ProcessCapture, SourceLine, at_exit, lock_at_exit, with_process_id};
pub use record::{MAGIC, OPEN_RANGES, Record, VERSION, header};
pub use stream::CaptureWriter;
