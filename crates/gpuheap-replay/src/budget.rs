//! Bounds of a search for allocator settings.

use std::time::Duration;

use crate::cards::Card;

/// Bounds of a search for allocator settings.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Budget {
    /// Device memory that the driver reports, in bytes. The memory fraction is relative to it.
    pub device_memory: u64,
    /// Memory that the program can allocate, in bytes.
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
    /// Returns the bounds of a search in `bytes` of usable memory: 20 seconds, any number of steps.
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

    /// Returns the bounds of a search on a card: its memory, 20 seconds, and any number of steps.
    pub fn for_card(card: &Card) -> Self {
        let Card { total_bytes, usable_bytes, vmm, .. } = *card;
        Self { device_memory: total_bytes, usable_memory: usable_bytes, vmm, ..Self::new(0) }
    }
}
