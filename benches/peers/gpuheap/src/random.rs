//! Generates random numbers. A seed gives the same sequence as in `workload.hpp`.

/// State of a splitmix64 generator.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number in [0, 1).
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns a log-uniform size from 256 B to 64 MiB.
    pub(crate) fn any_size(&mut self) -> u64 {
        (8.0 + 18.0 * self.unit()).exp2() as u64
    }

    /// Returns a power of two from 256 B to 512 KiB.
    pub(crate) fn small_size(&mut self) -> u64 {
        256 << (self.next() % 12)
    }
}
