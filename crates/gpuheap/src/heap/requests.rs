//! Reports memory requests to the command `gpuheap dry-run`. The command runs a program on an
//! emulated driver.
//!
//! A heap reports requests itself, because the emulated driver does not see all of them. If a
//! request is larger than the device, the heap refuses it without a driver call. If the driver
//! refused a request, the heap may still serve it, for example from cached memory.

use std::ffi::CString;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::Caller;
use crate::device::Context;
use crate::error::{Error, ErrorKind};
use crate::heap::{Heap, HeapInner};
use crate::kind::MemoryKind;

/// `true` once the driver or a heap refused a request. Requests that a heap granted are reported
/// only from then on.
static ANY_REFUSED: AtomicBool = AtomicBool::new(false);

/// Function that finds the line that requests memory, set by libraries for Python and C.
static FIND_REQUESTER: OnceLock<fn() -> Option<Requester>> = OnceLock::new();

/// Place in a program that requests memory.
#[doc(hidden)]
#[derive(Debug, Default)]
pub struct Requester {
    /// Address of the requesting line's [`Location`](std::panic::Location), or of the variable that
    /// receives the allocation's address; 0 if unknown.
    pub place: u64,
    /// Line of the program; `None` if the emulated driver has to find the line on the call stack.
    pub line: Option<String>,
}

/// Sets the function that finds the requester of memory, once in a process. If the function returns
/// `None`, the library reports requests itself.
#[doc(hidden)]
pub fn find_requesters_by(find: fn() -> Option<Requester>) {
    let _ = FIND_REQUESTER.set(find);
}

/// Starts to report granted requests too, because the driver refused memory. A heap may still serve
/// the refused request.
#[cold]
pub(super) fn note_shortage(context: &Context) {
    if context.driver().request_reports().is_some() {
        ANY_REFUSED.store(true, Ordering::Relaxed);
    }
}

impl HeapInner {
    /// Reports the result of a request that the line `at` made, and returns the result.
    #[inline]
    pub(super) fn reported<T>(
        &self,
        kind: MemoryKind,
        bytes: u64,
        at: Caller,
        result: Result<T, Error>,
    ) -> Result<T, Error> {
        let is_refused = match &result {
            Ok(_) if !ANY_REFUSED.load(Ordering::Relaxed) => return result,
            Ok(_) => false,
            Err(error) => error.kind() == ErrorKind::OutOfMemory,
        };
        if kind == MemoryKind::Device && (result.is_ok() || is_refused) {
            self.report(bytes, !is_refused, || match FIND_REQUESTER.get() {
                Some(find) => find(),
                None => Some(Requester {
                    place: std::ptr::from_ref(at).addr() as u64,
                    line: Some(format!("{}:{}", at.file(), at.line())),
                }),
            });
        }
        result
    }

    #[cold]
    fn report(&self, bytes: u64, is_granted: bool, find: impl FnOnce() -> Option<Requester>) {
        let Some(reports) = self.context.driver().request_reports() else { return };
        let Some(Requester { place, line }) = find() else { return };
        if !is_granted {
            ANY_REFUSED.store(true, Ordering::Relaxed);
        }
        let line = line.and_then(|line| CString::new(line).ok());
        reports.report(bytes, place, line.as_deref(), is_granted);
    }
}

impl Heap {
    /// Reports a request that the heap itself does not report, because the function of
    /// [`find_requesters_by`] returns `None`.
    #[doc(hidden)]
    #[inline]
    pub fn report_request(&self, bytes: u64, place: u64, is_granted: bool) {
        if !is_granted || ANY_REFUSED.load(Ordering::Relaxed) {
            self.inner().report(bytes, is_granted, || Some(Requester { place, line: None }));
        }
    }
}
