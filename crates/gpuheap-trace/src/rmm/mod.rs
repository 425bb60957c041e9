//! RMM's CSV log: `Thread,Time,Action,Pointer,Size,Stream`, a row an event.

mod clock;
mod field;
mod read;
mod rows;
mod write;

pub(crate) use read::read;
pub use write::write_rmm_csv;
