//! Reads and writes RMM's CSV log. Its columns are `Thread,Time,Action,Pointer,Size,Stream`.

mod clock;
mod field;
mod read;
mod rows;
mod write;

pub(crate) use read::read;
pub use write::write_rmm_csv;
