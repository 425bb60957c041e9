//! Headroom of a heap: what the device and the limits leave it.

use crate::limits::Limits;
use crate::source::MemorySource;

/// Memory that a heap could have, and the part of it that is left, in bytes. Nothing is left if the
/// driver does not report it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Headroom {
    /// Most that the heap could reserve: the device's memory, or a limit below it.
    pub most: u64,
    /// Bytes that the heap can reserve before the device or a limit is full.
    pub left: u64,
}

impl Headroom {
    /// Returns the headroom of a heap over `source`. Other programs' memory on the device is not
    /// left.
    pub fn from_source(source: &mut dyn MemorySource, limits: Limits) -> Headroom {
        let (Ok((free, _)), Ok(reserved)) = (source.device_memory(), source.reserved()) else {
            return Headroom::default();
        };
        let limit = limits.hard.unwrap_or(u64::MAX).min(limits.soft.unwrap_or(u64::MAX));
        Headroom {
            most: source.capacity().min(limit),
            left: free.min(limit.saturating_sub(reserved)),
        }
    }
}
