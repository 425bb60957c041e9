//! The kinds of memory that a heap hands out or knows about.

use std::fmt;

use gpuheap_pool::named;
use serde::Serialize;

named! {
    /// Kind of memory. It decides where the memory lives, and which side may access it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
    #[serde(rename_all = "snake_case")]
    #[non_exhaustive]
    pub enum MemoryKind {
        /// Device memory; the host accesses it by copies.
        Device = "device",
        /// Managed memory: the driver migrates pages to the processor that touches them.
        Unified = "unified",
        /// Pinned (page-locked) host memory, mapped for the device.
        Pinned = "pinned",
        /// Memory of the program, page-locked and mapped for the device while it is registered.
        Registered = "registered",
    }
}

impl MemoryKind {
    /// Returns `true` if the host may read and write the memory in place.
    pub fn is_host_accessible(self) -> bool {
        self != MemoryKind::Device
    }
}

impl fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
