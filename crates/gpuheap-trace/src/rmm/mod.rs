//! RMM's CSV log: `Thread,Time,Action,Pointer,Size,Stream`, one row for each event.

mod clock;
mod field;
mod read;
mod rows;
mod write;

pub(crate) use read::read;
pub use write::write_rmm_csv;
