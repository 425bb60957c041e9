//! Gives memory back to the driver: garbage, oversize blocks, or all cached memory.

use super::block::{Block, FIXED, Wanted};
use super::{Torch, fraction_of};

impl Torch {
    pub(super) fn collects_garbage(&self) -> bool {
        self.allowed.is_some() && self.settings.garbage_collection_threshold > 0.0
    }

    /// Gives back unused large segments, oldest first, until reserved bytes meet the threshold.
    pub(super) fn collect_garbage(&mut self) {
        let allowed = self.allowed.unwrap_or(u64::MAX);
        let threshold = fraction_of(allowed, self.settings.garbage_collection_threshold);
        if self.books.figures.reserved <= threshold {
            return;
        }
        let target = self.books.figures.reserved - threshold;
        let searches = self.pools[0].searches;
        let unsplit = |torch: &Self| -> Vec<(u32, u64)> {
            let free = torch.pools[0].streams.iter().flat_map(|of| of.free.iter());
            free.filter(|&(_, block)| {
                let block = &torch.blocks[block as usize];
                !block.is_split() && block.growing == FIXED
            })
            .map(|(_, block)| (block, searches - torch.blocks[block as usize].searches_before))
            .collect()
        };
        let mut blocks = unsplit(self);
        let mut total_age: u64 = blocks.iter().map(|&(_, age)| age).sum();
        let mut given_back = 0;
        while given_back < target && !blocks.is_empty() {
            let oldest = total_age as f64 / blocks.len() as f64;
            let (old, young): (Vec<_>, Vec<_>) =
                blocks.into_iter().partition(|&(_, age)| age as f64 >= oldest);
            if old.is_empty() {
                break;
            }
            for (block, age) in old {
                given_back += self.blocks[block as usize].bytes;
                total_age -= age;
                self.release(block);
            }
            blocks = young;
        }
    }

    /// Gives back oversize blocks of the stream, as many as the request needs. Returns `true` if
    /// these blocks are enough.
    pub(super) fn release_oversize(&mut self, wanted: Wanted) -> bool {
        let most = self.settings.max_split_size;
        if most == u64::MAX {
            return false;
        }
        let needed = wanted.bytes.max(most);
        let Some(of) = self.pools[wanted.pool as usize].stream(wanted.stream) else { return false };
        let is_fixed = |block: u32| self.blocks[block as usize].growing == FIXED;
        if let Some((_, block)) = of.free.get(of.free.find(needed))
            && is_fixed(block)
        {
            self.release(block);
            return true;
        }
        let largest_first = of.free.iter().rev().skip_while(|&(bytes, _)| bytes >= needed);
        let oversize = largest_first.take_while(|&(bytes, _)| bytes >= most);
        let mut given_back = 0_u64;
        let mut released = Vec::new();
        for (bytes, block) in oversize {
            if given_back >= needed {
                break;
            }
            if is_fixed(block) {
                given_back = given_back.saturating_add(bytes);
                released.push(block);
            }
        }
        for block in released {
            self.release(block);
        }
        given_back >= needed
    }

    /// Frees all pending blocks, as PyTorch does after a wait, and gives back all unused memory.
    pub(super) fn release_cached(&mut self) {
        while let Some(&block) = self.pending.last() {
            self.end_pending(block);
        }
        for pool in 0..2 {
            let free = self.pools[pool].streams.iter().flat_map(|of| of.free.iter());
            let (fixed, growing): (Vec<u32>, Vec<u32>) = free
                .map(|(_, block)| block)
                .partition(|&block| self.blocks[block as usize].growing == FIXED);
            for block in fixed {
                if !self.blocks[block as usize].is_split() {
                    self.release(block);
                }
            }
            for block in growing {
                self.unmap(block);
            }
        }
    }

    /// Gives a whole free segment back to the driver.
    fn release(&mut self, block: u32) {
        let Block { address, bytes, stream, .. } = self.blocks[block as usize];
        self.remove_free(block);
        self.addresses.give_back(address, bytes);
        self.books.figures.segments -= 1;
        self.books.figures.reserved -= bytes;
        self.books.count_call(false, bytes, stream, address);
        self.discard(block);
    }
}
