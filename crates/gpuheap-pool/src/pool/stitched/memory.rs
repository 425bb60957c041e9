//! Physical memory consists of chunks. Each chunk is mapped at one primary address, where its free
//! bytes are managed, and perhaps in stitched ranges too.

use std::collections::BTreeMap;

use super::growth::{self, MOST, floor_power};
use crate::pool::{Environment, Shortage};
use crate::source::{Chunk, Segment, SourceResult};

/// Size of the smallest chunk, in bytes: the driver's granule.
pub(super) const LEAST: u64 = crate::source::GRANULE;
/// Divisor of the pool's total memory. A chunk is at most as large as the quotient, or as the next
/// [piece](growth::piece) if that is larger. Chunks are small because a free part of a chunk can
/// only begin or end a stitched range, not be inside it.
const SHARE: u64 = 256;

#[derive(Debug)]
pub(super) struct Piece {
    /// Handle of the physical memory. `None` for a segment: the driver mapped it, without a handle.
    pub(super) chunk: Option<Chunk>,
    pub(super) bytes: u64,
    /// Ids of the stitched ranges in which the chunk is mapped. A range occurs once for each
    /// mapping.
    pub(super) ranges: Vec<u32>,
}

#[derive(Debug, Default)]
pub(super) struct Memory {
    /// Chunks and segments, keyed by primary address.
    pieces: BTreeMap<u64, Piece>,
    /// Chunks that are mapped nowhere, because a driver call failed after their creation or
    /// unmapping.
    loose: Vec<(Chunk, u64)>,
    bytes: u64,
}

impl Memory {
    /// Returns the bytes taken from the device.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the bytes of chunks that are mapped nowhere.
    pub(super) fn loose_bytes(&self) -> u64 {
        self.loose.iter().map(|(_, bytes)| bytes).sum()
    }

    pub(super) fn count(&self) -> usize {
        self.pieces.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty() && self.loose.is_empty()
    }

    /// Returns the chunk that contains `address`, and its start. Ignores stitched ranges.
    pub(super) fn holding(&self, address: u64) -> Option<(u64, &Piece)> {
        let (primary, piece) = self.pieces.range(..=address).next_back()?;
        (address < primary + piece.bytes).then_some((*primary, piece))
    }

    /// Returns the chunks with bytes from `address` to `end`. Ignores stitched ranges.
    pub(super) fn touching(&self, address: u64, end: u64) -> impl Iterator<Item = (u64, &Piece)> {
        let first = self.holding(address).map_or(address, |(primary, _)| primary);
        self.pieces.range(first..end).map(|(primary, piece)| (*primary, piece))
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (u64, &Piece)> {
        self.pieces.iter().map(|(primary, piece)| (*primary, piece))
    }

    pub(super) fn get_mut(&mut self, primary: u64) -> Option<&mut Piece> {
        self.pieces.get_mut(&primary)
    }

    /// Takes one chunk, maps it at the address `primary`, and returns its size. The chunk has at
    /// most `bytes`, a multiple of the granule. It is also at most as large as the pool's total
    /// memory divided by [`SHARE`], or as the next [piece](growth::piece) if that is larger.
    pub(super) fn add(
        &mut self,
        primary: u64,
        bytes: u64,
        most_piece: u64,
        env: &mut Environment<'_>,
    ) -> Result<u64, Shortage> {
        let kept = self.loose.iter().position(|(_, loose)| *loose <= bytes);
        let at = match kept {
            Some(at) => at,
            None => {
                let piece = growth::piece(most_piece, self.bytes);
                let share = floor_power(self.bytes / SHARE).clamp(piece, MOST);
                let size = share.min(floor_power(bytes));
                let chunk = env.create(size)?;
                self.bytes += size;
                self.loose.push((chunk, size));
                self.loose.len() - 1
            }
        };
        let (chunk, size) = self.loose[at];
        let pages = env.pages().map_err(Shortage::Failed)?;
        pages.map(primary, &[chunk]).map_err(Shortage::Failed)?;
        self.loose.swap_remove(at);
        self.pieces.insert(primary, Piece { chunk: Some(chunk), bytes: size, ranges: Vec::new() });
        Ok(size)
    }

    /// Adds a segment of the driver.
    pub(super) fn add_segment(&mut self, segment: Segment) {
        let piece = Piece { chunk: None, bytes: segment.bytes, ranges: Vec::new() };
        self.pieces.insert(segment.address, piece);
        self.bytes += segment.bytes;
    }

    /// Removes a segment that was given back.
    pub(super) fn remove_segment(&mut self, segment: Segment) {
        self.pieces.remove(&segment.address);
        self.bytes -= segment.bytes;
    }

    /// Unmaps a chunk from its primary address. The chunk is mapped at no other address.
    pub(super) fn unmap(&mut self, primary: u64, env: &mut Environment<'_>) -> SourceResult {
        let Some(piece) = self.pieces.get(&primary) else { return Ok(()) };
        env.pages()?.unmap(primary, piece.bytes)?;
        self.loose.extend(piece.chunk.map(|chunk| (chunk, piece.bytes)));
        self.pieces.remove(&primary);
        Ok(())
    }

    /// Gives unmapped chunks back to the device, until `target` bytes are given back.
    pub(super) fn destroy(&mut self, target: u64, env: &mut Environment<'_>) -> SourceResult<u64> {
        let mut destroyed = 0;
        while destroyed < target
            && let Some(&(chunk, bytes)) = self.loose.last()
        {
            env.destroy(chunk, bytes)?;
            self.loose.pop();
            self.bytes -= bytes;
            destroyed += bytes;
        }
        Ok(destroyed)
    }
}
