//! Bounds of a search for allocator settings.

use std::time::Duration;

use crate::cards::Card;

/// Bounds of a search for allocator settings.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Budget {
    /// Device memory as the driver reports it, bytes; the base of the memory fraction.
    pub device_memory: u64,
    /// Memory that the program can allocate, bytes.
    pub usable_memory: u64,
    /// `true` if the driver has virtual memory management. Without it, `expandable_segments` is not
    /// tried.
    pub vmm: bool,
    /// Memory fraction that the program sets. If `None`, settings that need a fraction are tried
    /// with 0.95.
    pub memory_fraction: Option<f64>,
    /// Largest total number of steps over all settings. At least one setting is tried. Unlike
    /// `time`, this bound gives the same results on all machines.
    pub steps: usize,
    /// Time after which no further setting is tried. At least one setting is tried.
    pub time: Duration,
}

impl Budget {
    /// Returns bounds for a device with `bytes` of usable memory, and a time of 20 seconds.
    pub fn new(bytes: u64) -> Self {
        const TIME: Duration = Duration::from_secs(20);
        Self {
            device_memory: bytes,
            usable_memory: bytes,
            vmm: true,
            memory_fraction: None,
            steps: usize::MAX,
            time: TIME,
        }
    }

    /// Returns bounds for a card, and a time of 20 seconds.
    pub fn for_card(card: &Card) -> Self {
        let Card { total_bytes, usable_bytes, vmm, .. } = *card;
        Self { device_memory: total_bytes, usable_memory: usable_bytes, vmm, ..Self::new(0) }
    }
}
