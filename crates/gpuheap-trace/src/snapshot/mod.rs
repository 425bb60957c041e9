//! PyTorch's memory snapshot: a pickle of plain data.

mod before;
mod entry;
mod frames;
mod heap;
mod keys;
mod opcode;
mod pickle;
mod plain;
mod read;
mod settings;

pub(crate) use read::read;
