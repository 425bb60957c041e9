//! Support of a device for virtual memory management.

use std::fmt;

use gpuheap_driver::DriverError;
use gpuheap_pool::Gone;

use crate::size::Bytes;

/// Reason why a device's virtual memory cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoVirtualMemory {
    /// The device does not report support for virtual memory management.
    Missing,
    /// The device reports virtual memory management, but a call of its functions failed.
    Refused(DriverError),
    /// The granularity, in bytes, is too large.
    Coarse(u64),
    /// Virtual memory could not be tried, because not one granule of memory was free.
    Full,
    /// The device can no longer be used.
    Gone(Gone),
}

impl NoVirtualMemory {
    /// Returns `true` if a later probe may have another result.
    pub(crate) fn is_passing(&self) -> bool {
        matches!(self, NoVirtualMemory::Full | NoVirtualMemory::Gone(_))
    }
}

/// Properties of a device's virtual memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VirtualMemory {
    /// Size of the smallest piece of physical memory in bytes, a power of two.
    pub(crate) granule: u64,
    /// `true` if GPUDirect RDMA can access physical memory that is created for it.
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
