//! The library's one error type.

mod kind;
mod out_of_memory;
mod reclaim_step;
#[cfg(test)]
mod tests;

use std::fmt;

use gpuheap_driver::{CUresult, DriverError, OpenError};
use gpuheap_pool::{DriverFailure, Gone, SourceError};

use crate::Caller;
use crate::kind::MemoryKind;

pub use kind::ErrorKind;
pub use out_of_memory::{Cause, Consumer, OutOfMemory};
pub(crate) use reclaim_step::RECLAIM_STEPS;
pub use reclaim_step::ReclaimStep;

/// An error of any gpuheap call.
///
/// It is one pointer wide. Its text has the failed operation, its object, the numbers and a remedy.
/// A program distinguishes errors by [`kind`](Error::kind). If memory ran out,
/// [`out_of_memory`](Error::out_of_memory) has the figures.
#[derive(Clone)]
pub struct Error(Box<Fault>);

#[derive(Clone)]
pub(crate) enum Fault {
    OutOfMemory(OutOfMemory),
    /// Index of a row that does not fit even as a batch of one row, and the figures of the request.
    Row(usize, OutOfMemory),
    /// Invalid request, such as an unknown name, a wrong limit or a stream of another device.
    Refused(ErrorKind, String),
    /// The machine's driver cannot be opened.
    Open(OpenError),
    Driver(DriverError),
    /// One of gpuheap's kernels could not be loaded or launched: its name, and the driver's error.
    #[cfg_attr(
        not(feature = "arithmetic"),
        expect(dead_code, reason = "arithmetic has the kernels")
    )]
    Kernel(String, DriverError),
    StreamUnusable,
    /// An array whose memory was freed before its use.
    Freed(Freed),
    /// The context no longer exists, in a forked child or after a reset.
    Gone(Gone),
}

/// Way in which an array's memory was freed while handles to it existed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Freed {
    /// Freed by `free_early` at this line.
    Early(Caller),
    /// Freed at the end of the scope that began at this line.
    Scope(Caller),
    /// Freed at the end of its step in an iteration over batches. The iteration began at this line.
    Batch(Caller),
}

/// Refusal of work because the host has borrowed unified memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostBorrowed;

impl HostBorrowed {
    /// Text of the error.
    pub(crate) const TEXT: &'static str = "the device cannot be given work now, because the host \
        has a unified array of it borrowed (as_slice or as_mut_slice) and the device lacks \
        concurrent access to managed memory, as under WSL2: the host would crash if both ran; drop \
        the borrow first, or use pinned memory";
}

impl Error {
    /// Returns the kind of error, for a program to act on.
    ///
    /// ```
    /// use gpuheap::{Device, ErrorKind};
    ///
    /// assert_eq!(Device::open("gpu0").unwrap_err().kind(), ErrorKind::BadSetting);
    /// ```
    pub fn kind(&self) -> ErrorKind {
        match &*self.0 {
            Fault::OutOfMemory(_) | Fault::Row(..) => ErrorKind::OutOfMemory,
            Fault::Refused(kind, _) => *kind,
            Fault::Open(_) => ErrorKind::NoDevice,
            Fault::Driver(error) | Fault::Kernel(_, error) if error.is_out_of_memory() => {
                ErrorKind::OutOfMemory
            }
            Fault::Driver(_) | Fault::Kernel(..) => ErrorKind::Driver,
            Fault::StreamUnusable => ErrorKind::StreamUnusable,
            Fault::Freed(_) => ErrorKind::Freed,
            Fault::Gone(_) => ErrorKind::Gone,
        }
    }

    /// Returns the figures of a request that a heap had no memory for. `None` for all other errors.
    pub fn out_of_memory(&self) -> Option<&OutOfMemory> {
        match &*self.0 {
            Fault::OutOfMemory(evidence) | Fault::Row(_, evidence) => Some(evidence),
            _ => None,
        }
    }

    /// Returns `true` if an array was used after it was freed.
    pub fn is_freed(&self) -> bool {
        matches!(&*self.0, Fault::Freed(_))
    }

    /// Returns `true` if the context no longer exists, in a forked child or after a reset.
    pub fn is_gone(&self) -> bool {
        matches!(&*self.0, Fault::Gone(_))
    }

    /// Adds the lines of the program that hold the most memory of the kind that ran out.
    pub(crate) fn with_consumers(mut self, top: impl FnOnce(MemoryKind) -> Vec<Consumer>) -> Error {
        if let Fault::OutOfMemory(evidence) = &mut *self.0 {
            evidence.consumers = top(evidence.kind);
        }
        self
    }

    /// Returns the driver call that failed. `None` for an error of the library itself.
    pub fn driver(&self) -> Option<DriverError> {
        match &*self.0 {
            Fault::Driver(error) | Fault::Kernel(_, error) => Some(*error),
            _ => None,
        }
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Error {
        Error(Box::new(fault))
    }
}

impl From<DriverError> for Error {
    fn from(error: DriverError) -> Error {
        Fault::Driver(error).into()
    }
}

impl From<SourceError> for Error {
    fn from(error: SourceError) -> Error {
        match error {
            SourceError::Driver(failure) => Fault::Driver(driver_error(failure)),
            SourceError::StreamUnusable => Fault::StreamUnusable,
            SourceError::Gone(gone) => Fault::Gone(gone),
            SourceError::HostBorrowed => return HostBorrowed.into(),
            SourceError::Capturing => Fault::Refused(ErrorKind::Capturing, CAPTURING.to_owned()),
            SourceError::OutOfMemory | SourceError::Limited => Fault::Refused(
                ErrorKind::OutOfMemory,
                "the driver has no memory left for its own bookkeeping; free some and try again"
                    .to_owned(),
            ),
        }
        .into()
    }
}

/// Converts the failure of a driver call to the error of a source.
pub(crate) fn failure(error: DriverError) -> SourceError {
    if error.is_out_of_memory() {
        return SourceError::OutOfMemory;
    }
    SourceError::Driver(DriverFailure { function: error.function(), code: error.code().0 })
}

/// Converts a source's error back to the failure of a driver call.
pub(crate) fn driver_error(failure: DriverFailure) -> DriverError {
    DriverError::new(failure.function, CUresult(failure.code))
}

/// Text of an [`ErrorKind::Capturing`] error.
pub(crate) const CAPTURING: &str = "a stream is capturing a graph, which this would break: it can be \
    neither waited for nor made to wait for others, copy from or to plain host memory, or have \
    memory of the none and driver pools (use the split pool); do this before the capture begins or \
    after it ended";

impl From<HostBorrowed> for Error {
    fn from(_: HostBorrowed) -> Error {
        ErrorKind::Busy.error(HostBorrowed::TEXT)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            Fault::OutOfMemory(evidence) => evidence.fmt(f),
            Fault::Refused(_, text) => f.write_str(text),
            Fault::Freed(Freed::Early(at)) => write!(
                f,
                "the array was freed at {}:{}; keep it until its last use, or make a copy before",
                at.file(),
                at.line()
            ),
            Fault::Freed(Freed::Scope(at)) => write!(
                f,
                "the array was freed at the end of the scope that began at {}:{}; hand it to the \
                 scope's keep to use it longer",
                at.file(),
                at.line()
            ),
            Fault::Freed(Freed::Batch(at)) => write!(
                f,
                "the array was freed when the turn of its batch ended, of the batches asked for at \
                 {}:{}; hand it to their keep to use it longer, or make a copy during its turn",
                at.file(),
                at.line()
            ),
            Fault::Row(row, evidence) => write!(
                f,
                "row {row} does not fit, and a batch has one row at least; free memory, or split the \
                 array along another axis: {evidence}"
            ),
            Fault::Open(error) => error.fmt(f),
            Fault::Driver(error) => error.fmt(f),
            Fault::Kernel(kernel, error) => write!(f, "{error} (kernel {kernel})"),
            Fault::Gone(gone) => gone.fmt(f),
            Fault::StreamUnusable => f.write_str(
                "a stream cannot be waited for or given work: one that was retired (use another stream), \
                 one that may have ended unannounced, because its event could not be recorded when a \
                 block was freed on it (synchronise the device), or one that is capturing a graph (end \
                 the capture first)",
            ),
        }
    }
}

/// Writes the text of [`Display`](fmt::Display), so that `main`, `unwrap` and `expect` show it.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &*self.0 {
            Fault::Open(error) => Some(error),
            Fault::Driver(error) | Fault::Kernel(_, error) => Some(error),
            _ => None,
        }
    }
}
