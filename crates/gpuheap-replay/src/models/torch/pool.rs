//! Free memory of one pool, by stream.

use std::collections::BTreeMap;

use super::free_blocks::FreeBlocks;

#[derive(Debug, Clone)]
pub(super) struct BlockPool {
    pub(super) is_small: bool,
    /// Free memory of each stream, ordered by handle.
    pub(super) streams: Vec<StreamMemory>,
    /// Index in `streams` of the stream that was accessed last.
    pub(super) last: usize,
    /// Number of searches of the pool, counted only if garbage collection is on.
    pub(super) searches: u64,
}

#[derive(Debug, Clone, Default)]
pub(super) struct StreamMemory {
    pub(super) stream: u64,
    pub(super) free: FreeBlocks,
    /// Address ranges of growing segments at which no memory is mapped.
    pub(super) unmapped: BTreeMap<u64, u32>,
}

impl BlockPool {
    pub(super) fn new(is_small: bool) -> Self {
        Self { is_small, streams: Vec::new(), last: 0, searches: 0 }
    }

    pub(super) fn stream(&self, stream: u64) -> Option<&StreamMemory> {
        if let Some(last) = self.streams.get(self.last)
            && last.stream == stream
        {
            return Some(last);
        }
        self.streams.iter().find(|of| of.stream == stream)
    }

    pub(super) fn stream_mut(&mut self, stream: u64) -> &mut StreamMemory {
        if self.streams.get(self.last).is_some_and(|last| last.stream == stream) {
            return &mut self.streams[self.last];
        }
        let at = self.streams.iter().position(|of| of.stream >= stream);
        let at = at.unwrap_or(self.streams.len());
        if self.streams.get(at).is_none_or(|of| of.stream != stream) {
            self.streams.insert(at, StreamMemory { stream, ..StreamMemory::default() });
        }
        self.last = at;
        &mut self.streams[at]
    }
}
