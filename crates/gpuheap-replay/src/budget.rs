//! Bounds of a search.

use std::time::Duration;

use crate::cards::Card;

/// Bounds of a search.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Budget {
    /// Memory that the driver reports, bytes. A memory fraction is a part of it.
    pub device_memory: u64,
    /// Memory that the program can allocate, bytes.
    pub usable_memory: u64,
    /// `true` if the driver has virtual memory management. Without it, `expandable_segments` is not
    /// tried.
    pub vmm: bool,
    /// Memory fraction that the program sets. If `None`, settings that need one are tried with
    /// 0.95.
    pub memory_fraction: Option<f64>,
    /// Bound of the steps that run under all settings together. At least one setting is tried.
    /// Unlike `time`, this bound gives equal results on all machines.
    pub steps: usize,
    /// Time after which no further setting begins. At least one is tried.
    pub time: Duration,
}

impl Budget {
    /// Returns the bounds of a device with `bytes` to allocate, and 20 seconds.
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

    /// Returns the bounds of a card, and 20 seconds.
    pub fn for_card(card: &Card) -> Self {
        let Card { total_bytes, usable_bytes, vmm, .. } = *card;
        Self { device_memory: total_bytes, usable_memory: usable_bytes, vmm, ..Self::new(0) }
    }
}
