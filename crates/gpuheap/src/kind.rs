//! The kinds of memory that a heap hands out or knows of.

use std::fmt;

use serde::Serialize;

/// Where memory lives and who may touch it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum MemoryKind {
    /// The device's own memory; the host reads it by copies.
    Device,
    /// Managed by the driver, which moves pages to whoever touches them.
    Unified,
    /// Page-locked memory of the host, mapped for the device.
    Pinned,
    /// Memory of the program's own, page-locked and mapped for the device while it is registered.
    Registered,
}

impl MemoryKind {
    /// All of them, in the order in which they are shown.
    pub const ALL: [MemoryKind; 4] =
        [MemoryKind::Device, MemoryKind::Unified, MemoryKind::Pinned, MemoryKind::Registered];

    /// One word for it.
    pub fn name(self) -> &'static str {
        match self {
            MemoryKind::Device => "device",
            MemoryKind::Unified => "unified",
            MemoryKind::Pinned => "pinned",
            MemoryKind::Registered => "registered",
        }
    }

    /// Whether the host may read and write it in place.
    pub fn is_host_accessible(self) -> bool {
        self != MemoryKind::Device
    }
}

impl fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
