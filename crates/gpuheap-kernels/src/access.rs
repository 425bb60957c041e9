//! Which bytes a kernel uses.

use crate::Kernel;

/// What a launch does with some bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Access {
    /// Whether it writes them; if not, it reads them.
    pub writes: bool,
    /// Which bytes.
    pub region: Region,
}

/// Bytes that lie in equal runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Region {
    /// Where the first run starts.
    pub address: u64,
    /// Bytes of a run.
    pub run: u64,
    /// How many runs along each axis and how far apart, bytes; outermost first.
    pub axes: Vec<(u64, i64)>,
}

impl Kernel {
    /// The bytes that a launch with these words uses.
    pub fn accesses(&self, words: &[u64]) -> Vec<Access> {
        let _ = words;
        Vec::new()
    }
}
