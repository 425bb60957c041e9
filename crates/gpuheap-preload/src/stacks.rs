//! Native stacks of the calling thread, as return addresses.

use std::sync::OnceLock;

/// Most frames that are recorded of a stack.
const DEPTH: usize = 64;

/// Return addresses of a stack, innermost first.
pub(crate) struct NativeStack {
    addresses: [u64; DEPTH],
    len: usize,
}

impl NativeStack {
    /// Returns a stack without frames.
    pub(crate) const EMPTY: NativeStack = NativeStack { addresses: [0; DEPTH], len: 0 };

    /// Captures the calling thread's stack, without the frames of this library.
    #[inline(never)]
    pub(crate) fn capture() -> NativeStack {
        let (own_start, own_end) = own_range();
        let mut stack = NativeStack::EMPTY;
        // SAFETY: the unwinder of Linux needs no lock.
        unsafe {
            backtrace::trace_unsynchronized(|frame| {
                let address = frame.ip().addr() as u64;
                if stack.len == 0 && (own_start..own_end).contains(&address) {
                    return true;
                }
                // The outermost frame of a thread may have a null return address.
                match stack.addresses.get_mut(stack.len) {
                    Some(place) if address != 0 => *place = address,
                    _ => return false,
                }
                stack.len += 1;
                true
            });
        }
        stack
    }

    pub(crate) fn addresses(&self) -> &[u64] {
        &self.addresses[..self.len]
    }
}

/// Returns the addresses of this library's code.
fn own_range() -> (u64, u64) {
    static RANGE: OnceLock<(u64, u64)> = OnceLock::new();
    *RANGE.get_or_init(|| {
        let own = own_range as fn() -> (u64, u64) as usize as u64;
        let modules = crate::modules::loaded();
        let found = modules.iter().find(|module| (module.start..module.end).contains(&own));
        found.map_or((0, 0), |module| (module.start, module.end))
    })
}
