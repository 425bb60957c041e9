//! The kinds of memory that a heap hands out or knows about.

use std::fmt;

use serde::Serialize;

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
}

impl fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
