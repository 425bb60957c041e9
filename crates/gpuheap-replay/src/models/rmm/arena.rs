//! RMM's arenas.

use std::collections::BTreeMap;

use super::{ALIGN, LEGACY, stream_key};
use crate::models::spans::{FreeSpans, Live, Span};
use crate::models::{Books, Model, Refusal, Request, SettingError, Ticket};

/// Smallest superblock of an arena, in bytes. Larger requests go to the global arena.
const SUPERBLOCK: u64 = 1 << 20;

/// RMM's `ArenaMemoryResource` over `cudaMalloc`. Its size is fixed, and each stream has an arena.
#[derive(Debug, Clone)]
pub struct Arena {
    books: Books,
    live: Live<(u64, Span)>,
    global: Superblocks,
    arenas: BTreeMap<u64, Superblocks>,
}

#[derive(Debug, Clone, Default)]
struct Superblocks(BTreeMap<u64, Superblock>);

#[derive(Debug, Clone)]
struct Superblock {
    bytes: u64,
    free: FreeSpans,
}

impl Superblock {
    fn new(place: u64, bytes: u64) -> Self {
        let mut free = FreeSpans::default();
        free.insert(Span { place, bytes, is_head: false });
        Self { bytes, free }
    }

    fn is_empty(&self, place: u64) -> bool {
        self.free.get(place) == Some(self.bytes)
    }
}

impl Superblocks {
    /// Returns the place of the lowest superblock with a free piece of `bytes`.
    fn first_fit(&self, bytes: u64) -> Option<u64> {
        let mut blocks = self.0.iter();
        blocks.find(|(_, block)| block.free.largest() >= bytes).map(|(&place, _)| place)
    }

    /// Removes the lowest superblock with a free piece of `bytes`. If that superblock is wholly
    /// free, cuts it to the size that is needed.
    fn extract(&mut self, bytes: u64) -> Option<(u64, Superblock)> {
        let place = self.first_fit(bytes)?;
        let block = self.0.remove(&place)?;
        let least = bytes.max(SUPERBLOCK);
        if block.is_empty(place) && block.bytes >= least.saturating_add(SUPERBLOCK) {
            let rest = place + least;
            self.0.insert(rest, Superblock::new(rest, block.bytes - least));
            return Some((place, Superblock::new(place, least)));
        }
        Some((place, block))
    }

    /// Puts a superblock back. If that superblock is wholly free, merges it with wholly free
    /// neighbours.
    fn put_back(&mut self, place: u64, block: Superblock) {
        if !block.is_empty(place) {
            self.0.insert(place, block);
            return;
        }
        let (mut place, mut bytes) = (place, block.bytes);
        if let Some((&before, other)) = self.0.range(..place).next_back()
            && other.is_empty(before)
            && before + other.bytes == place
        {
            bytes += other.bytes;
            place = before;
            self.0.remove(&before);
        }
        let after = place + bytes;
        if let Some(other) = self.0.get(&after)
            && other.is_empty(after)
        {
            bytes += other.bytes;
            self.0.remove(&after);
        }
        self.0.insert(place, Superblock::new(place, bytes));
    }

    /// Frees a span of the global arena. Returns `false` if no superblock holds it.
    fn free(&mut self, span: Span) -> bool {
        let place = self.holding(span);
        let Some((place, mut block)) = place.and_then(|place| self.0.remove_entry(&place)) else {
            return false;
        };
        block.free.insert(span);
        self.put_back(place, block);
        true
    }

    /// Returns the address of the superblock that contains the span; `None` if no superblock does.
    fn holding(&self, span: Span) -> Option<u64> {
        let (&place, block) = self.0.range(..=span.place).next_back()?;
        (place + block.bytes >= span.place + span.bytes).then_some(place)
    }

    fn largest(&self) -> u64 {
        self.0.values().map(|block| block.free.largest()).max().unwrap_or(0)
    }
}

impl Arena {
    /// Makes the arena of a device that has `device_memory` bytes for this program. RMM's default
    /// for `arena_size` is half of the free memory.
    ///
    /// # Errors
    /// Returns an error if `arena_size` is less than 1 MiB, or more than the device has.
    pub fn new(device_memory: u64, arena_size: Option<u64>) -> Result<Self, SettingError> {
        let bytes = arena_size.unwrap_or(device_memory / 2) / ALIGN * ALIGN;
        if bytes < SUPERBLOCK {
            return Err(SettingError::new(
                format!("arena_size is {bytes}"),
                "RMM takes at least 1 MiB",
            ));
        }
        let mut books = Books::new(device_memory);
        if !books.take(bytes, LEGACY, 0) {
            return Err(SettingError::new(
                format!("arena_size is {bytes}, more than the device has"),
                "lower it",
            ));
        }
        let global = Superblocks(BTreeMap::from([(0, Superblock::new(0, bytes))]));
        Ok(Self { books, live: Live::default(), global, arenas: BTreeMap::new() })
    }

    fn take(&mut self, bytes: u64, stream: u64) -> Option<Span> {
        if bytes > SUPERBLOCK {
            let (place, mut block) = self.global.extract(bytes)?;
            let span = block.free.take_first(bytes);
            self.global.0.insert(place, block);
            return span;
        }
        let arena = self.arenas.entry(stream).or_default();
        if let Some(place) = arena.first_fit(bytes) {
            return arena.0.get_mut(&place)?.free.take_first(bytes);
        }
        let (place, mut block) = self.global.extract(bytes)?;
        let span = block.free.take_first(bytes);
        arena.0.insert(place, block);
        span
    }

    /// Moves all superblocks of the arenas to the global arena, including superblocks in use.
    fn defragment(&mut self) {
        for arena in self.arenas.values_mut() {
            for (place, block) in std::mem::take(&mut arena.0) {
                self.global.put_back(place, block);
            }
        }
    }
}

impl Model for Arena {
    fn name(&self) -> String {
        format!("rmm:arena:arena_size:{}", self.books.figures.peak_reserved)
    }

    fn serve(&mut self, request: Request) -> Result<Ticket, Box<Refusal>> {
        let bytes = request.bytes.checked_next_multiple_of(ALIGN).unwrap_or(u64::MAX);
        let stream = stream_key(request.stream);
        let mut found = self.take(bytes, stream);
        if found.is_none() {
            self.defragment();
            self.books.figures.retries += 1;
            found = self.take(bytes, stream);
        }
        let Some(span) = found else {
            let largest = self.global.largest();
            return Err(self.books.refuse(request, bytes, largest));
        };
        self.books.handed_out(request.bytes, span.bytes);
        Ok(self.live.add((request.bytes, span)))
    }

    fn free(&mut self, ticket: Ticket, stream: u64) {
        let Some((requested, span)) = self.live.take(ticket) else { return };
        self.books.freed(requested, span.bytes);
        if span.bytes > SUPERBLOCK && self.global.free(span) {
            return;
        }
        let own = self.arenas.get_mut(&stream_key(stream));
        let holds = |arena: &&mut Superblocks| arena.holding(span).is_some();
        let arena = match own.filter(|arena| holds(arena)) {
            Some(own) => Some(own),
            None => self.arenas.values_mut().find(holds),
        };
        match arena {
            Some(arena) => {
                if let Some(block) = arena.holding(span).and_then(|place| arena.0.get_mut(&place)) {
                    block.free.insert(span);
                }
            }
            None => {
                self.global.free(span);
            }
        }
    }

    fn books(&self) -> &Books {
        &self.books
    }
}
