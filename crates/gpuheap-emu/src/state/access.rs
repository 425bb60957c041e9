//! Uses of memory: an access to a range, and the source or the target of a copy.

/// Way in which work uses a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AccessKind {
    Read,
    Write,
    /// Assigns the range to the stream. Writes nothing.
    Allocate,
    /// Ends the stream's right to the range.
    Free,
}

/// One side of a copy (source or target), as the caller gave it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Side {
    pub(crate) address: u64,
    pub(crate) is: Is,
    pub(crate) pitch: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Is {
    /// A device address, according to the caller.
    Device,
    /// A host address. The caller named it so, or a lookup of the emulator's allocations found it.
    Host,
    /// A device or a host address. A lookup determines which.
    Any,
}

impl Side {
    pub(crate) fn device(address: u64) -> Side {
        Side { address, is: Is::Device, pitch: 0 }
    }

    pub(crate) fn host(address: u64) -> Side {
        Side { address, is: Is::Host, pitch: 0 }
    }

    pub(crate) fn any(address: u64) -> Side {
        Side { address, is: Is::Any, pitch: 0 }
    }
}
