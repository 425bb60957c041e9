//! The kinds of memory that a heap hands out or knows about.

use std::fmt;

use serde::Serialize;

use crate::device::DeviceInfo;
use crate::error::{Error, ErrorKind};

/// Kind of memory: where it lives, and which side may access it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum MemoryKind {
    /// Device memory; the host accesses it by copies.
    Device,
    /// Managed memory: the driver migrates pages to the processor that touches them.
    Unified,
    /// Pinned (page-locked) host memory, mapped for the device.
    Pinned,
    /// Memory of the program, page-locked and mapped for the device while it is registered.
    Registered,
}

impl MemoryKind {
    /// All kinds, in the order in which they are displayed.
    pub const ALL: [MemoryKind; 4] =
        [MemoryKind::Device, MemoryKind::Unified, MemoryKind::Pinned, MemoryKind::Registered];

    /// Returns the kind's name, one word.
    pub fn name(self) -> &'static str {
        match self {
            MemoryKind::Device => "device",
            MemoryKind::Unified => "unified",
            MemoryKind::Pinned => "pinned",
            MemoryKind::Registered => "registered",
        }
    }

    /// Returns `true` if the host may read and write the memory in place.
    pub fn is_host_accessible(self) -> bool {
        self != MemoryKind::Device
    }

    /// Refuses a kind of memory that the device does not support.
    pub(crate) fn check(self, info: &DeviceInfo) -> Result<(), Error> {
        match self {
            MemoryKind::Unified if !info.managed_memory => {
                Err(ErrorKind::Unsupported.error(format!(
                    "{} has no unified memory; use device memory, and pinned memory for what the \
                     host touches",
                    info.name
                )))
            }
            MemoryKind::Registered => Err(ErrorKind::WrongMemory.error(
                "registered memory is the program's own and cannot be allocated; hand a vector to \
                 Target::register, or allocate pinned memory",
            )),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
#[cfg(feature = "emulator")]
mod tests {
    use super::*;
    use crate::device::Device;

    #[test]
    fn what_a_device_lacks_is_refused_with_a_remedy() {
        let mut info = Device::open("emulated:1GiB").unwrap().describe();
        for kind in [MemoryKind::Device, MemoryKind::Unified, MemoryKind::Pinned] {
            kind.check(&info).unwrap();
        }
        info.managed_memory = false;
        let error = MemoryKind::Unified.check(&info).unwrap_err().to_string();
        assert!(error.starts_with("emulated:1GiB has no unified memory; use device"), "{error}");
        MemoryKind::Pinned.check(&info).unwrap();
    }
}
