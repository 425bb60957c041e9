//! gpuheap's own capture of a process: append-only, readable after a crash.
//!
//! A file has the magic, the version, and records. A record is a tag, then fields as LEB128 numbers
//! and texts. In a mapped file, the writer stores the tag of a record last, and the unused rest is
//! zeros. So all records before a tag of 0 are whole, even if the process was killed within a call.
//!
//! | record | is |
//! |---|---|
//! | `Process`, `Device`, `Module` | facts for all records after it |
//! | `Text`, `Frame`, `Stack`, `ThreadStart`, `RangeStart` | get the next number of their kind; events name it |
//! | `Allocate`, `Free`, `FreeFailed`, `Fail` | events of memory |
//! | `Folded` | counts allocations that were freed at once; the writer updates it in its place |
//! | `Map`, `Unmap` | addresses of physical memory, if blocks of pools are recorded |
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
