//! Records of the memory that a kernel may have changed. The emulator uses them if kernels are not
//! run.

use std::collections::BTreeMap;

/// Maximum number of written ranges that are kept. A model's weights are uploaded in thousands of
/// copies, but a framework reports each copy soon after it. So the oldest ranges can be dropped.
const MOST_WRITTEN: usize = 1024;

#[derive(Default)]
pub(crate) struct Changes {
    /// Addresses and ends of the ranges that the program wrote since the last launch, oldest first.
    written: Vec<(u64, u64)>,
    /// Addresses and ends of the blocks that an allocator of the program reported. A freed block
    /// stays in the map until another block takes its place.
    blocks: BTreeMap<u64, u64>,
}

impl Changes {
    /// Records a copy or a fill.
    pub(crate) fn note_written(&mut self, address: u64, bytes: u64) {
        if self.written.len() == MOST_WRITTEN {
            self.written.drain(..MOST_WRITTEN / 2);
        }
        self.written.push((address, address.saturating_add(bytes)));
    }

    /// Records a launch.
    pub(crate) fn note_launch(&mut self) {
        self.written.clear();
    }

    /// Returns whether one copy or fill wrote all of a range since the last launch.
    pub(crate) fn is_written(&self, address: u64, end: u64) -> bool {
        self.written.iter().rev().any(|&(from, to)| from <= address && end <= to)
    }

    /// Records a block of the program's allocator, and removes the blocks that it overlaps.
    pub(crate) fn add_block(&mut self, address: u64, end: u64) {
        while let Some((&last, &last_end)) = self.blocks.range(..end).next_back()
            && last_end > address
        {
            self.blocks.remove(&last);
        }
        self.blocks.insert(address, end);
    }

    pub(crate) fn block_at(&self, address: u64) -> Option<(u64, u64)> {
        let (&start, &end) = self.blocks.range(..=address).next_back()?;
        (address < end).then_some((start, end))
    }
}
