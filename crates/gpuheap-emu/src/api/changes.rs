//! Content of device memory that the driver does not see change: by an allocator of the program,
//! which hands blocks out of a larger allocation, and by kernels that are not run.

use crate::Kernels;
use crate::emulator::Call;
use crate::state::space::{Kind, is_device_address};

impl Call<'_> {
    /// Takes a block of the program's own allocator, and forgets its content.
    pub(crate) fn hand_out(&mut self, address: u64, bytes: u64) {
        if is_device_address(address) {
            self.state.changes.add_block(address, address.saturating_add(bytes));
            self.forget(address, bytes);
        }
    }

    /// Notes a copy or a fill, if kernels do nothing.
    pub(super) fn note_written(&mut self, address: u64, bytes: u64) {
        if self.state.options.kernels == Kernels::NoOp {
            self.state.changes.note_written(address, bytes);
        }
    }

    /// Forgets the content of a range, unless the program wrote all of it after its last launch.
    pub(crate) fn change(&mut self, address: u64, bytes: u64) {
        if !self.state.changes.is_written(address, address.saturating_add(bytes)) {
            self.forget(address, bytes);
        }
    }

    /// Forgets the content of the blocks that a kernel got the addresses of. If no block is known
    /// at an address, the rest of its allocation counts as the block.
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

    /// Forgets the content of a range of device memory, as far as the range has memory.
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
