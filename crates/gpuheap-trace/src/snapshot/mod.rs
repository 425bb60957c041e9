//! Reads and writes PyTorch's memory snapshots. A snapshot is a pickle of plain data.

mod at_end;
mod before;
mod entry;
mod entry_dict;
mod frames;
mod heap;
mod input;
mod keys;
mod memo;
mod opcode;
mod pickle;
mod plain;
mod read;
mod settings;
mod shapes;
mod texts;
mod value;
mod write;

pub(crate) use read::read;
pub use write::write_pytorch_snapshot;
