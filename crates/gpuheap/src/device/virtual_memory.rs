//! What is known of a device's virtual memory management.

use std::fmt;

use gpuheap_driver::DriverError;
use gpuheap_pool::Gone;

use crate::size::Bytes;

/// Why a device has no virtual memory to give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoVirtualMemory {
    /// The device does not claim to have it.
    Missing,
    /// It claims to, and a call failed.
    Refused(DriverError),
    /// It comes in pieces that are too large to be handed out, bytes.
    Coarse(u64),
    /// It could not be tried, because not one granule was left.
    Full,
    /// The device cannot be used any more.
    Gone(Gone),
}

impl NoVirtualMemory {
    /// Returns `true` if it may be otherwise another time.
    pub(crate) fn is_passing(&self) -> bool {
        matches!(self, NoVirtualMemory::Full | NoVirtualMemory::Gone(_))
    }
}

/// What has to be known of a device's virtual memory before it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VirtualMemory {
    /// The least size of physical memory, bytes: a power of two.
    pub(crate) granule: u64,
    /// `true` if GPUDirect RDMA reaches physical memory that is made for it.
    pub(crate) rdma: bool,
}

impl fmt::Display for NoVirtualMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoVirtualMemory::Missing => f.write_str("the device has no virtual memory management"),
            NoVirtualMemory::Refused(error) => {
                write!(f, "the device claims virtual memory management and refuses it: {error}")
            }
            NoVirtualMemory::Coarse(granule) => {
                let granule = Bytes(*granule);
                write!(
                    f,
                    "the device's virtual memory comes in pieces of {granule}, which is too much"
                )
            }
            NoVirtualMemory::Full => f.write_str(
                "virtual memory management could not be tried: the device has no memory left",
            ),
            NoVirtualMemory::Gone(gone) => gone.fmt(f),
        }
    }
}
