//! Uses of memory: an access to a range, and the sides of a copy.

/// Way in which work uses a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AccessKind {
    Read,
    Write,
    /// The range becomes the stream's. Nothing is written.
    Allocate,
    /// The range is no longer the stream's.
    Free,
}

/// One side of a copy, as the caller gave it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Side {
    pub(crate) address: u64,
    pub(crate) is: Is,
    pub(crate) pitch: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Is {
    /// An address that the device sees, as the caller says.
    Device,
    /// An address of the host, as the caller says or as the emulator found.
    Host,
    /// An address of either kind, as the address shows.
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
