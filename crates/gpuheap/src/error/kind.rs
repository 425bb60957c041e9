//! Kinds of errors, by which a program tells them apart.

use super::{Error, Fault};

/// The kind of an [`Error`], by which a program decides what to do about it.
///
/// Texts are for people and may change; kinds do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Memory of the device, or that the driver hands out, ran out. If a heap was asked for the
    /// memory, [`Error::out_of_memory`] has the figures.
    OutOfMemory,
    /// The host lacks the memory or the thread that the call needs.
    HostResources,
    /// The array was freed before it was used. [`Error::is_freed`] says so too.
    Freed,
    /// The memory is borrowed by the host, still being adapted, or not reached by its stream yet. The
    /// same call can succeed later.
    Busy,
    /// A scope or a batch ended before the call.
    Ended,
    /// The context ended: in a forked child, or after a reset. [`Error::is_gone`] says so too.
    Gone,
    /// A shape, a length, an axis, an index or a range that does not fit the array.
    WrongShape,
    /// Elements of another type, size or alignment than the memory holds.
    WrongType,
    /// Arrays, streams, events or pointers of devices or contexts that cannot be used together.
    WrongDevice,
    /// The array's [kind of memory](crate::MemoryKind) does not allow the call.
    WrongMemory,
    /// The source and the destination overlap.
    Overlap,
    /// More elements or bytes than any memory holds.
    TooLarge,
    /// Bytes on the device that mean nothing as the type that they are read as, or keys out of range.
    InvalidData,
    /// Another argument that the call cannot be made with.
    InvalidArgument,
    /// A pointer that cannot be wrapped: the driver does not know the memory behind it.
    BadPointer,
    /// A name, a limit or another setting that means nothing or contradicts another one, from a
    /// builder or from the environment.
    BadSetting,
    /// The heap does not [track](crate::Tracking) allocations.
    NotTracked,
    /// The device, its driver or its platform cannot do it.
    Unsupported,
    /// A stream in whose order memory cannot be kept or waited for.
    StreamUnusable,
    /// A stream is capturing a graph, which the call would break.
    Capturing,
    /// Code of the program that the library called panicked.
    Panicked,
    /// The machine lacks the device, or a driver that can be used.
    NoDevice,
    /// A driver call failed: [`Error::driver`] has its name and code.
    Driver,
}

impl ErrorKind {
    /// All kinds, in the order of the enum.
    pub const ALL: &[ErrorKind] = &[
        ErrorKind::OutOfMemory,
        ErrorKind::HostResources,
        ErrorKind::Freed,
        ErrorKind::Busy,
        ErrorKind::Ended,
        ErrorKind::Gone,
        ErrorKind::WrongShape,
        ErrorKind::WrongType,
        ErrorKind::WrongDevice,
        ErrorKind::WrongMemory,
        ErrorKind::Overlap,
        ErrorKind::TooLarge,
        ErrorKind::InvalidData,
        ErrorKind::InvalidArgument,
        ErrorKind::BadPointer,
        ErrorKind::BadSetting,
        ErrorKind::NotTracked,
        ErrorKind::Unsupported,
        ErrorKind::StreamUnusable,
        ErrorKind::Capturing,
        ErrorKind::Panicked,
        ErrorKind::NoDevice,
        ErrorKind::Driver,
    ];

    /// An error of this kind, whose text says what failed, on what, the numbers, and what to do.
    pub(crate) fn error(self, text: impl Into<String>) -> Error {
        Fault::Refused(self, text.into()).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_kinds_has_each_kind_once() {
        assert!(ErrorKind::ALL.iter().enumerate().all(|(at, kind)| *kind as usize == at));
        assert_eq!(ErrorKind::ALL.len(), ErrorKind::Driver as usize + 1, "Driver is the last one");
    }
}
