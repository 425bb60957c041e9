//! Changes to device memory that the driver does not see. Allocators of the program hand out blocks
//! of a larger allocation, and kernels that are not run would have written memory.

use crate::Kernels;
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

    /// Records a copy or a fill, if kernels are not run.
    pub(super) fn note_written(&mut self, address: u64, bytes: u64) {
        if self.state.options.kernels == Kernels::NoOp {
            self.state.changes.note_written(address, bytes);
        }
    }

    /// Forgets the content of a range, unless one copy or fill wrote all of the range after the
    /// last launch.
    pub(crate) fn change(&mut self, address: u64, bytes: u64) {
        if !self.state.changes.is_written(address, address.saturating_add(bytes)) {
            self.forget(address, bytes);
        }
    }

    /// Forgets the content of the blocks whose addresses a kernel received. If no block is known at
    /// an address, the rest of the allocation counts as the block.
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

    /// Forgets the content of a device address range, where the range has memory.
    fn forget(&mut self, address: u64, bytes: u64) {
        let state = &mut *self.state;
        if state.pages.is_empty() || !is_device_address(address) {
            return;
        }
        let Some((base, found)) = state.space.find(address) else { return };
        let end = address.saturating_add(bytes).min(base + found.bytes);
        if found.kind != Kind::Reserved {
            state.pages.forget(address, end - address);
            return;
        }
        let mut at = address;
        while at < end {
            match state.vmm.find(at) {
                Some((start, mapping)) => {
                    let inside = at - start;
                    let bytes = (mapping.bytes - inside).min(end - at);
                    state.pages.forget(mapping.base + inside, bytes);
                    at += bytes;
                }
                None => {
                    let mapped = state.vmm.mappings.range(at..end).next();
                    at = mapped.map_or(end, |(&start, _)| start);
                }
            }
        }
    }
}
