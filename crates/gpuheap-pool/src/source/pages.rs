//! Takes physical memory and addresses separately, by the driver's virtual memory management.

use super::SourceResult;

/// Physical memory of the device: one allocation handle of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Chunk(pub u32);

/// Reserves addresses, and maps physical memory at them.
///
/// Sizes and addresses are multiples of the [granule](Pages::granule). A chunk is mapped whole, and
/// may be mapped at several addresses at once. No call is enqueued on a stream. So before a range
/// is unmapped, the host must know that the range is out of use.
pub trait Pages {
    /// Returns the size of the smallest chunk, in bytes: a power of two.
    fn granule(&self) -> u64;

    /// Reserves `bytes` of addresses, without memory.
    fn reserve(&mut self, bytes: u64) -> SourceResult<u64>;

    /// Frees a range of addresses that one call of `reserve` returned. The caller has unmapped all
    /// of it.
    fn unreserve(&mut self, address: u64, bytes: u64) -> SourceResult;

    /// Takes physical memory from the device. The memory counts as reserved after this call.
    fn create(&mut self, bytes: u64) -> SourceResult<Chunk>;

    /// Gives back physical memory that is mapped nowhere.
    fn destroy(&mut self, chunk: Chunk) -> SourceResult;

    /// Maps chunks one after the other, starting at `address`, and lets the device read and write
    /// the range. If the call fails, no chunk is mapped.
    fn map(&mut self, address: u64, chunks: &[Chunk]) -> SourceResult;

    /// Unmaps one chunk of `bytes` bytes that is mapped at `address`.
    fn unmap(&mut self, address: u64, bytes: u64) -> SourceResult;
}
