//! Reserves addresses for stitched ranges in large pieces, and hands them out by first fit.

use std::collections::BTreeMap;

use crate::pool::{Environment, Shortage};
use crate::source::{Segment, SourceError, SourceResult};

#[derive(Debug, Default)]
pub(crate) struct Addresses {
    /// Lengths of the free ranges, keyed by start.
    free: BTreeMap<u64, u64>,
    reserved: Vec<Segment>,
}

impl Addresses {
    /// Takes a range of `bytes` addresses. Nothing is mapped at these addresses.
    pub(crate) fn take(&mut self, bytes: u64, env: &mut Environment<'_>) -> Result<u64, Shortage> {
        let fits = |free: &BTreeMap<u64, u64>| {
            free.iter()
                .find(|(_, length)| **length >= bytes)
                .map(|(start, length)| (*start, *length))
        };
        let (start, length) = match fits(&self.free) {
            Some(found) => found,
            None => {
                let segment = reserve(bytes, env)?;
                self.reserved.push(segment);
                self.free.insert(segment.address, segment.bytes);
                (segment.address, segment.bytes)
            }
        };
        self.free.remove(&start);
        if length > bytes {
            self.free.insert(start + bytes, length - bytes);
        }
        Ok(start)
    }

    /// Returns a range that [`take`](Addresses::take) handed out.
    pub(crate) fn give(&mut self, mut address: u64, mut bytes: u64) {
        let borders = |edge: u64| self.reserved.iter().any(|segment| segment.address == edge);
        if let Some(after) = self.free.get(&(address + bytes)).copied()
            && !borders(address + bytes)
        {
            self.free.remove(&(address + bytes));
            bytes += after;
        }
        let before =
            self.free.range(..address).next_back().map(|(start, length)| (*start, *length));
        if let Some((start, length)) = before
            && start + length == address
            && !borders(address)
        {
            (address, bytes) = (start, bytes + length);
        }
        self.free.insert(address, bytes);
    }

    /// Gives back all reserved addresses to the driver. None of them is in use.
    pub(crate) fn clear(&mut self, env: &mut Environment<'_>) -> SourceResult {
        self.free.clear();
        while let Some(segment) = self.reserved.last().copied() {
            env.pages()?.unreserve(segment.address, segment.bytes)?;
            self.reserved.pop();
        }
        Ok(())
    }
}

/// Reserves addresses for four times the device's memory, or fewer if the driver refuses so many.
pub(crate) fn reserve(bytes: u64, env: &mut Environment<'_>) -> Result<Segment, Shortage> {
    const TIMES: u64 = 4;
    /// Largest reservation of addresses, in bytes.
    const SPACE: u64 = 1 << 46;
    let capacity = env.source.capacity();
    let wanted = capacity.saturating_mul(TIMES).max(bytes).min(SPACE).next_power_of_two();
    let mut size = wanted.max(crate::pool::stitched::memory::LEAST);
    let pages = env.pages().map_err(Shortage::Failed)?;
    loop {
        match pages.reserve(size) {
            Ok(address) => return Ok(Segment { address, bytes: size }),
            Err(SourceError::OutOfMemory) if size / 2 >= bytes => size /= 2,
            Err(SourceError::OutOfMemory) => return Err(Shortage::Device(bytes)),
            Err(error) => return Err(Shortage::Failed(error)),
        }
    }
}
