//! Kinds of errors, for programs.

use super::{Error, Fault};

/// Declares an enum and its list `ALL`.
macro_rules! kinds {
    ($(#[$meta:meta])* pub enum $name:ident { $($(#[$doc:meta])* $kind:ident,)* }) => {
        $(#[$meta])*
        pub enum $name {
            $($(#[$doc])* $kind,)*
        }

        impl $name {
            /// All kinds, in the order of the enum.
            pub const ALL: &[$name] = &[$($name::$kind),*];
        }
    };
}

kinds! {
    /// Kind of an [`Error`]. A program uses it to decide how to handle the error.
    ///
    /// Kinds are stable. Texts are for people and may change.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    pub enum ErrorKind {
        /// Memory ran out: device memory, or another kind of memory that the driver hands out. If a
        /// heap refused the request, [`Error::out_of_memory`] has the figures.
        OutOfMemory,
        /// The host lacks the memory or the thread that the call needs.
        HostResources,
        /// The array was freed before its use. [`Error::is_freed`] is then true.
        Freed,
        /// The host has borrowed the memory, the array is still being adapted, or an event is not
        /// reached yet. A later attempt can succeed.
        Busy,
        /// A scope or a batch ended before the call.
        Ended,
        /// The context ended, in a forked child or after a reset. [`Error::is_gone`] is then true.
        Gone,
        /// A shape, a length, an axis, an index or a range that does not fit the array.
        WrongShape,
        /// Elements of another type, size or alignment than the memory holds.
        WrongType,
        /// Arrays, streams, events or pointers of different devices or contexts cannot be used
        /// together.
        WrongDevice,
        /// The array's [kind of memory](crate::MemoryKind) does not allow the call.
        WrongMemory,
        /// The source and the destination overlap.
        Overlap,
        /// More elements or bytes than any memory holds.
        TooLarge,
        /// Bytes on the device that are not valid values of the requested type, or keys out of
        /// range.
        InvalidData,
        /// An argument that the call does not accept, for a reason that has no separate kind.
        InvalidArgument,
        /// A pointer that cannot be wrapped: it points into no memory of the driver.
        BadPointer,
        /// A setting of a builder or of the environment, such as a name or a limit, is unknown or
        /// contradicts another setting.
        BadSetting,
        /// The heap does not [track](crate::Tracking) allocations.
        NotTracked,
        /// The device, its driver or its platform does not support the operation.
        Unsupported,
        /// A stream that cannot be used to order allocations and frees, or that cannot be waited
        /// for.
        StreamUnusable,
        /// A stream is capturing a graph, and the call would break the capture.
        Capturing,
        /// A callback of the program panicked.
        Panicked,
        /// The machine lacks the device, or a usable driver.
        NoDevice,
        /// A driver call failed. [`Error::driver`] has its name and code.
        Driver,
    }
}

impl ErrorKind {
    /// Makes an error of this kind. `text` has the failed operation, its object, the numbers and a
    /// remedy.
    pub(crate) fn error(self, text: impl Into<String>) -> Error {
        Fault::Refused(self, text.into()).into()
    }
}
