//! Stacks of the calling thread: native return addresses, and frames of Python.

use std::sync::OnceLock;

use crate::python::{PythonFrame, PythonStack};

/// Most frames that are recorded of a stack.
const DEPTH: usize = 64;

/// Stack of a call.
pub(crate) struct CallStack {
    addresses: [u64; DEPTH],
    len: usize,
    python: PythonStack,
}

impl CallStack {
    /// Returns a stack without frames.
    pub(crate) const EMPTY: CallStack =
        CallStack { addresses: [0; DEPTH], len: 0, python: PythonStack::EMPTY };

    /// Captures the calling thread's stack, without the frames of this library. Frames of Python
    /// are left out unless `with_python`.
    #[inline(never)]
    pub(crate) fn capture(with_python: bool) -> CallStack {
        let (own_start, own_end) = own_range();
        let mut stack = CallStack::EMPTY;
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
        if with_python {
            stack.python = PythonStack::capture();
        }
        stack
    }

    /// Returns the native return addresses, innermost first.
    pub(crate) fn addresses(&self) -> &[u64] {
        &self.addresses[..self.len]
    }

    /// Returns the frames of Python, innermost first.
    pub(crate) fn python(&self) -> &[PythonFrame] {
        self.python.frames()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0 && self.python().is_empty()
    }
}

/// Returns the addresses of this library's code.
fn own_range() -> (u64, u64) {
    static RANGE: OnceLock<(u64, u64)> = OnceLock::new();
    *RANGE.get_or_init(|| {
        let own = own_range as fn() -> (u64, u64) as usize as u64;
        let modules = gpuheap_capture::loaded_modules();
        let found = modules.iter().find(|module| (module.start..module.end).contains(&own));
        found.map_or((0, 0), |module| (module.start, module.end))
    })
}
