//! Memory that an allocator of the program hands out of larger pieces that it took from the driver.

use crate::emulator::Call;
use crate::state::space::{Kind, is_device_address};

impl Call<'_> {
    /// Forgets the content of a part that an allocator hands out, up to the next part in use or the
    /// end of the allocation.
    pub(crate) fn hand_out(&mut self, address: u64) {
        let state = &mut *self.state;
        let parts = &mut state.handed_out;
        let next = parts.range(address.saturating_add(1)..).next().copied();
        parts.insert(address);
        if state.pages.is_empty() || !is_device_address(address) {
            return;
        }
        let Some((base, found)) = state.space.find(address) else { return };
        let end = (base + found.bytes).min(next.unwrap_or(u64::MAX));
        if found.kind != Kind::Reserved {
            state.pages.forget(address, end - address);
            return;
        }
        // Of reserved addresses, those without a mapping have no content.
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
