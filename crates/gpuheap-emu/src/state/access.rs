//! Uses of memory: one range, or one side of a copy.

/// Way in which work uses a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Access {
    Read,
    Write,
    /// It becomes the stream's, with nothing written.
    Allocate,
    /// It is the stream's no more.
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
    /// Said to be an address that the device sees.
    Device,
    /// Said to be an address of the host, or found to be one.
    Host,
    /// To be told from the address.
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
