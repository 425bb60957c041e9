//! What a heap has taken, handed out and got back, in bytes and counts.

/// The account of one heap. Exact at every moment: a failed call leaves it as it was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Bytes handed out, as requested.
    pub live: u64,
    /// Allocations handed out.
    pub live_allocations: u64,
    /// Bytes handed out, each allocation's rounding included.
    pub live_blocks: u64,
    /// The high-water mark of [`live`](Ledger::live).
    pub live_peak: u64,
    /// Bytes taken from the driver and not given back, as asked of it.
    pub taken: u64,
    /// Allocations ever made.
    pub allocations: u64,
    /// Bytes ever handed out, as requested.
    pub allocated_bytes: u64,
    /// Allocations ever freed.
    pub frees: u64,
    /// Bytes ever given back to the driver.
    pub given_back: u64,
    /// Frees during which a driver call failed. Their blocks are accounted for all the same.
    pub failed_frees: u64,
}

impl Ledger {
    /// An allocation of `bytes` was handed out in a block of `block` bytes.
    pub(crate) fn allocated(&mut self, bytes: u64, block: u64) {
        self.live += bytes;
        self.live_blocks += block;
        self.live_allocations += 1;
        self.allocations += 1;
        self.allocated_bytes += bytes;
        self.live_peak = self.live_peak.max(self.live);
    }

    /// That allocation came back.
    pub(crate) fn freed(&mut self, bytes: u64, block: u64) {
        self.live -= bytes;
        self.live_blocks -= block;
        self.live_allocations -= 1;
        self.frees += 1;
    }

    pub(crate) fn took(&mut self, bytes: u64) {
        self.taken += bytes;
    }

    pub(crate) fn gave_back(&mut self, bytes: u64) {
        self.taken -= bytes;
        self.given_back += bytes;
    }

    /// Bytes taken and not handed out: cached, pending ones included.
    pub fn cached(&self) -> u64 {
        self.taken - self.live_blocks
    }
}
