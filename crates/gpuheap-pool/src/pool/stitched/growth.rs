//! Bounds the memory that is taken beyond live memory, and the size of its pieces (chunks).
//!
//! Memory that no other program needs costs nothing, and a mapping costs 25 µs. While the device
//! and the limits are far from full, the pool therefore takes new memory instead of stitching. It
//! takes large pieces before they are needed. As the device or a limit fills, the extra memory and
//! the pieces shrink to nothing.

use crate::pool::Headroom;
use crate::source::{GRANULE, round_up};

/// Largest chunk, in bytes. For each chunk of up to 512 MiB, setting access costs 24 µs. Giving
/// back a chunk of 512 MiB costs 136 µs (H200, driver 580). Larger chunks save nothing more.
pub(super) const MOST: u64 = 512 << 20;

/// Share, as a divisor, of the most bytes that the heap could reserve. Before the pool stitches
/// free chunks (maps them together), it may reserve this share (1.4 %) above the high-water mark of
/// live bytes. With this value, none of 20 recorded programs stitches on an H200. For random sizes
/// with 8 GiB live, utilisation is 0.81 on the H200; with a divisor of 64 it is 0.79.
const SHARE_OF_MOST: u64 = 72;
/// Share, as a divisor, of the bytes that are left to reserve. This share bounds the bytes above
/// the high-water mark too. It is the smaller bound if less than 22 % (16/72) of the total is left.
const SHARE_OF_LEFT: u64 = 16;
/// Divisor of the result of [`allowance`]. The quotient bounds the size of a piece, the chunk that
/// one driver call takes: 128 MiB on an H200. The driver takes 80 µs for a piece of any size from
/// 32 MiB on, and larger pieces leave more memory unused.
const PIECES: u64 = 12;
/// Maximum size of a chunk, in bytes, while fewer than [`FEW_RESERVED`] bytes are reserved. From
/// then on, the maximum is the reserved bytes divided by [`PART_OF_RESERVED`]. A flush cannot give
/// back a chunk that contains a live block. When chunks had up to 128 MiB from the beginning, a
/// flush left 264 MiB reserved, of which 10 MiB were live.
const SMALL_PIECE: u64 = 16 << 20;
const FEW_RESERVED: u64 = 1 << 30;
const PART_OF_RESERVED: u64 = 8;
/// Maximum size of the next chunk, as a multiple of the reserved bytes. A program that needs little
/// memory therefore takes little.
const TIMES: u64 = 4;

/// Bound on the pool's total memory after a request takes new memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bound {
    /// At most [`Growth::most`] bytes. For more, free chunks are mapped together instead.
    Slack,
    /// No bound, because free memory cannot serve the request.
    None,
}

/// Bounds of the memory that is taken for one request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Growth {
    /// Total bytes up to which new memory is taken. Above this total, free chunks are stitched.
    pub(super) most: u64,
    /// Largest piece that the device and the limits allow, in bytes.
    pub(super) most_piece: u64,
    /// Bytes left before the device or a limit is full.
    left: u64,
}

/// Returns the bytes that may be reserved above the high-water mark of live bytes. As the device or
/// a limit fills, these bytes shrink to zero.
pub(super) fn allowance(headroom: Headroom) -> u64 {
    (headroom.most / SHARE_OF_MOST).min(headroom.left / SHARE_OF_LEFT)
}

/// Returns the size of the next chunk of a pool that has `memory` bytes now: at most `most_piece`.
pub(super) fn piece(most_piece: u64, memory: u64) -> u64 {
    let part = if memory < FEW_RESERVED { SMALL_PIECE } else { memory / PART_OF_RESERVED };
    let piece = most_piece.min(part).min(memory.saturating_mul(TIMES));
    floor_power(piece).clamp(GRANULE, MOST)
}

/// Returns the largest power of two that is at most `bytes`. Returns zero for zero.
pub(super) fn floor_power(bytes: u64) -> u64 {
    if bytes == 0 { 0 } else { 1 << bytes.ilog2() }
}

impl Growth {
    /// Returns the bounds for growth to a total of `most` bytes. `allowance` bounds the size of a
    /// chunk, and `headroom` bounds the memory that is taken before it is needed.
    pub(super) fn new(most: u64, allowance: u64, headroom: Headroom) -> Growth {
        Growth { most, most_piece: allowance / PIECES, left: headroom.left }
    }

    /// Returns the bytes to take if a request needs `need` bytes and the pool has `memory` bytes:
    /// `need` rounded up to whole pieces, or `need` itself if that would exceed a bound.
    pub(super) fn ahead(self, need: u64, memory: u64) -> u64 {
        let ahead = round_up(need, piece(self.most_piece, memory));
        let fits = ahead <= self.left && memory.saturating_add(ahead) <= self.most;
        if fits { ahead } else { need }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    #[test]
    fn allowance_shrinks_as_device_fills() {
        let allowances = [72, 40, 18, 9, 0].map(|left| {
            let headroom = Headroom { most: 72 * GIB, left: left * GIB };
            allowance(headroom)
        });
        assert_eq!(allowances, [GIB, GIB, GIB, 576 * MIB, 0]);
    }

    #[test]
    fn pieces_grow_with_reserved_bytes() {
        let headroom = Headroom { most: 150 * GIB, left: 150 * GIB };
        let most = Growth::new(u64::MAX, allowance(headroom), headroom).most_piece;
        let sizes = [0, 2 * MIB, 10 * MIB, GIB - 1, GIB, 100 * GIB].map(|memory| {
            let size = piece(most, memory);
            assert!(size <= (memory / 8).max(16 * MIB), "{memory}");
            size
        });
        assert_eq!(sizes, [2, 8, 16, 16, 128, 128].map(|mib| mib * MIB));
        assert_eq!(piece(0, GIB), GRANULE, "a device that is full");
    }

    #[test]
    fn whole_pieces_stay_within_bounds() {
        let growth = Growth { most: 100 * MIB, most_piece: 16 * MIB, left: 40 * MIB };
        assert_eq!(growth.ahead(6 * MIB, 84 * MIB), 16 * MIB);
        assert_eq!(growth.ahead(6 * MIB, 86 * MIB), 6 * MIB, "the total");
        assert_eq!(growth.ahead(34 * MIB, 20 * MIB), 34 * MIB, "the headroom");
    }
}
