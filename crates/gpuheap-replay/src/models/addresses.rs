//! Models the addresses that a driver gives to its memory.
//!
//! Of two free blocks of equal size, the allocators take the lower one. So addresses decide which
//! segments fill up. The rules here were observed on an H200 (driver 580). The driver places memory
//! in windows of addresses. A window's size is a multiple of 32 MiB, and each new window lies below
//! all earlier windows. An allocation begins at the start of its window. The rest of the window
//! serves later requests that fit, lowest address first.

use std::collections::{BTreeMap, VecDeque};

/// Granularity of windows, in bytes.
const WINDOW: u64 = 32 << 20;
/// End of the first window.
const TOP: u64 = 0x7f00_0000_0000;
/// Start of the first growing segment. This address is below all segments that do not grow.
const GROWING: u64 = 0x3_0200_0000;

/// Addresses of a model's device.
#[derive(Debug, Clone)]
pub(crate) struct Addresses {
    /// Start and length of each free range in a window.
    holes: BTreeMap<u64, u64>,
    lowest: u64,
    next_growing: u64,
    /// Recorded addresses from the driver, each with its size in bytes, in order. Cleared at the
    /// first request that has another size than the next entry.
    recorded: VecDeque<(u64, u64)>,
}

impl Default for Addresses {
    fn default() -> Self {
        Self {
            holes: BTreeMap::new(),
            lowest: TOP,
            next_growing: GROWING,
            recorded: VecDeque::new(),
        }
    }
}

impl Addresses {
    /// Sets recorded pairs of address and size. [`take`](Self::take) returns these addresses while
    /// the sizes match.
    pub(crate) fn follow(&mut self, recorded: impl IntoIterator<Item = (u64, u64)>) {
        self.recorded = recorded.into_iter().collect();
        // Once a request differs from the recording, addresses are invented below all recorded
        // ones.
        if let Some(lowest) = self.recorded.iter().map(|&(address, _)| address).min() {
            self.lowest = self.lowest.min(lowest / WINDOW * WINDOW);
        }
    }

    /// Returns the address of a new segment of `bytes` bytes. The segment does not grow.
    pub(crate) fn take(&mut self, bytes: u64) -> u64 {
        if let Some((address, recorded)) = self.recorded.pop_front() {
            if recorded == bytes && address.checked_add(bytes).is_some() {
                return address;
            }
            self.recorded.clear();
        }
        let fitting = self.holes.iter().find(|&(_, &length)| length >= bytes);
        let (start, length) = match fitting {
            Some((&start, &length)) => {
                self.holes.remove(&start);
                (start, length)
            }
            None => {
                let length = bytes.checked_next_multiple_of(WINDOW).unwrap_or(bytes);
                self.lowest = self.lowest.saturating_sub(length);
                (self.lowest, length)
            }
        };
        if length > bytes {
            self.holes.insert(start.saturating_add(bytes), length - bytes);
        }
        start
    }

    /// Frees a range that [`take`](Self::take) returned.
    pub(crate) fn give_back(&mut self, address: u64, bytes: u64) {
        let (mut start, mut length) = (address, bytes);
        if let Some((&before, &its)) = self.holes.range(..start).next_back()
            && before.saturating_add(its) == start
        {
            self.holes.remove(&before);
            (start, length) = (before, length.saturating_add(its));
        }
        if let Some(its) = self.holes.remove(&start.saturating_add(length)) {
            length = length.saturating_add(its);
        }
        self.holes.insert(start, length);
    }

    /// Takes a range of addresses for a segment that grows in place.
    pub(crate) fn take_growing(&mut self, bytes: u64) -> u64 {
        let address = self.next_growing;
        self.next_growing = address.saturating_add(bytes);
        address
    }
}
