//! Tracks two kinds of changes to device memory that no driver call shows. An allocator of the
//! program may reuse part of an allocation. A kernel that the emulator does not run would have
//! written memory.

use crate::Kernels;
use crate::api::work::KEPT;
use crate::emulator::Call;
use crate::state::space::{Kind, is_device_address};

impl Call<'_> {
    /// Records a block that the program's own allocator hands out, and forgets the block's content.
    pub(crate) fn hand_out(&mut self, address: u64, bytes: u64) {
        if is_device_address(address) {
            self.state.changes.add_block(address, address.saturating_add(bytes));
            self.forget(address, bytes);
        }
    }

    /// Records the range that a copy or a fill wrote, so that `change` can keep its content. Only
    /// an emulator that does not run kernels needs the record.
    pub(super) fn note_written(&mut self, address: u64, bytes: u64) {
        if self.state.options.kernels == Kernels::NoOp {
            self.state.changes.note_written(address, bytes);
        }
    }

    /// Forgets the content of a range that the program reported as changed. Programs report copies
    /// too, so keeps the content if one copy or fill wrote it all since the last launch.
    pub(crate) fn change(&mut self, address: u64, bytes: u64) {
        if !self.state.changes.is_written(address, address.saturating_add(bytes)) {
            self.forget(address, bytes);
        }
    }

    /// Forgets the content of the blocks whose addresses a kernel received. If no block is known at
    /// an address, forgets everything from the address to the end of the allocation.
    pub(crate) fn change_blocks_at(&mut self, addresses: &[u64]) {
        self.state.changes.note_launch();
        if self.state.pages.is_empty() {
            return;
        }
        for &address in addresses {
            let (start, end) = self.state.changes.block_at(address).unwrap_or((address, u64::MAX));
            self.forget(start, end - start);
        }
    }

    /// If kernels are not run, writes a repeated value that a kernel would have written. `value`
    /// has the size of an element.
    pub(crate) fn fill_by_kernel(&mut self, address: u64, bytes: u64, value: &[u8]) {
        if bytes > KEPT || self.state.options.kernels != Kernels::NoOp {
            return;
        }
        let data: Vec<u8> = value.iter().copied().cycle().take(bytes as usize).collect();
        for (offset, physical, length) in self.mapped_ranges(address, bytes) {
            self.state.pages.write(physical, &data[offset as usize..][..length as usize]);
        }
    }

    /// Forgets the content of a device address range. Skips addresses that have no memory.
    fn forget(&mut self, address: u64, bytes: u64) {
        if self.state.pages.is_empty() {
            return;
        }
        for (_, physical, length) in self.mapped_ranges(address, bytes) {
            self.state.pages.forget(physical, length);
        }
    }

    /// Returns the parts of a device address range that have memory. Each has an offset, a physical
    /// address and a length.
    fn mapped_ranges(&self, address: u64, bytes: u64) -> Vec<(u64, u64, u64)> {
        let state = &*self.state;
        let found = state.space.find(address).filter(|_| is_device_address(address));
        let Some((base, found)) = found else { return Vec::new() };
        let end = address.saturating_add(bytes).min(base + found.bytes);
        if found.kind != Kind::Reserved {
            return vec![(0, address, end - address)];
        }
        let mut ranges = Vec::new();
        let mut at = address;
        while at < end {
            match state.vmm.find(at) {
                Some((start, mapping)) => {
                    let inside = at - start;
                    let bytes = (mapping.bytes - inside).min(end - at);
                    ranges.push((at - address, mapping.base + inside, bytes));
                    at += bytes;
                }
                None => {
                    let mapped = state.vmm.mappings.range(at..end).next();
                    at = mapped.map_or(end, |(&start, _)| start);
                }
            }
        }
        ranges
    }
}
