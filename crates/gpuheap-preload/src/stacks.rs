//! Captures the calling thread's stack. It has native return addresses and frames of Python.

use std::mem::MaybeUninit;
use std::sync::OnceLock;

#[cfg(target_arch = "x86_64")]
use crate::known_stacks::{self, Unwound};
use crate::python::{PythonFrame, PythonStack};

/// Maximum number of recorded frames of a stack.
const DEPTH: usize = 64;

/// Stack of a call. The places after the last frame are not initialised, because clearing the 1.7
/// KiB for each event takes longer than the capture of most stacks.
pub(crate) struct CallStack {
    addresses: [MaybeUninit<u64>; DEPTH],
    len: usize,
    python: PythonStack,
}

impl CallStack {
    /// Returns a stack without frames.
    #[inline]
    pub(crate) fn empty() -> CallStack {
        let addresses = [const { MaybeUninit::uninit() }; DEPTH];
        CallStack { addresses, len: 0, python: PythonStack::empty() }
    }

    /// Captures the calling thread's stack, without the frames of this library. Frames of Python
    /// are left out unless `with_python`.
    #[inline(never)]
    pub(crate) fn capture(with_python: bool) -> CallStack {
        let mut stack = CallStack::empty();
        let own = own_range();
        #[cfg(target_arch = "x86_64")]
        {
            let pointer = known_stacks::stack_pointer();
            if !known_stacks::known(pointer, |address| stack.push(address, own)) {
                let mut unwound = Unwound::new(pointer);
                unwind(|frame| {
                    let address = frame.ip().addr() as u64;
                    unwound.push(address, frame.sp().addr());
                    stack.push(address, own)
                });
                unwound.keep();
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        unwind(|frame| stack.push(frame.ip().addr() as u64, own));
        if with_python {
            stack.python.capture();
        }
        stack
    }

    /// Adds the next outer return address. Returns `false` if no further address is captured.
    fn push(&mut self, address: u64, own: (u64, u64)) -> bool {
        if self.len == 0 && (own.0..own.1).contains(&address) {
            return true;
        }
        // A null address ends the stack: the outermost frame of a thread may have one.
        match self.addresses.get_mut(self.len) {
            Some(place) if address != 0 => {
                place.write(address);
                self.len += 1;
                true
            }
            _ => false,
        }
    }

    /// Leaves out the innermost frames of Python.
    pub(crate) fn skip_python(&mut self, frames: usize) {
        self.python.skip(frames);
    }

    /// Returns the native return addresses, innermost first.
    pub(crate) fn addresses(&self) -> &[u64] {
        // SAFETY: the first `len` addresses are written.
        unsafe { std::slice::from_raw_parts(self.addresses.as_ptr().cast(), self.len) }
    }

    /// Returns the frames of Python, innermost first.
    pub(crate) fn python(&self) -> &[PythonFrame] {
        self.python.frames()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0 && self.python().is_empty()
    }
}

/// Calls `add` with each frame of the calling thread, the innermost first. Stops if `add` returns
/// `false`.
fn unwind(add: impl FnMut(&backtrace::Frame) -> bool) {
    // SAFETY: the unwinder of Linux needs no lock.
    unsafe { backtrace::trace_unsynchronized(add) };
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
