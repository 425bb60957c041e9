//! Memory and addresses apart: the driver's virtual memory management.

use super::SourceError;

/// Physical memory of the device: one allocation handle of the driver's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Chunk(pub u32);

/// What reserves addresses, and maps physical memory behind them.
///
/// Sizes and addresses are multiples of the [granule](Pages::granule). A chunk is mapped whole, and
/// may be mapped at several addresses at once. No call is work of a stream: what is unmapped must be
/// out of use, as the host knows.
pub trait Pages {
    /// The smallest chunk, bytes: a power of two.
    fn granule(&self) -> u64;

    /// Reserves addresses; they cost no memory.
    fn reserve(&mut self, bytes: u64) -> Result<u64, SourceError>;

    /// Gives addresses back as they were reserved, nothing mapped at them.
    fn unreserve(&mut self, address: u64, bytes: u64) -> Result<(), SourceError>;

    /// Takes physical memory from the device; it counts as reserved from here on.
    fn create(&mut self, bytes: u64) -> Result<Chunk, SourceError>;

    /// Gives physical memory back that is mapped nowhere.
    fn destroy(&mut self, chunk: Chunk) -> Result<(), SourceError>;

    /// Maps chunks one after the other from `address` on and makes the range readable and writable
    /// for the device; all of them, or none where it fails.
    fn map(&mut self, address: u64, chunks: &[Chunk]) -> Result<(), SourceError>;

    /// Takes the mapping of one chunk, of `bytes`, away from `address`.
    fn unmap(&mut self, address: u64, bytes: u64) -> Result<(), SourceError>;
}
