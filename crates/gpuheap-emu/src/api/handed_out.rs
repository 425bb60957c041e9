//! Memory that an allocator of the program hands out of larger allocations.

use crate::emulator::Call;
use crate::state::space::{Kind, is_device_address};

impl Call<'_> {
    /// Forgets the content of a range of device memory, as far as the range has memory.
    pub(crate) fn hand_out(&mut self, address: u64, bytes: u64) {
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
