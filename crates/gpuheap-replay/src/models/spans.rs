//! Defines data structures that several allocators share, for free pieces and for live blocks.

use std::collections::{BTreeMap, BTreeSet};

use super::Ticket;

/// Free pieces, sorted by place and by size. A head is a place where an allocation from the driver
/// begins. A piece at a head never merges with the piece before it.
#[derive(Debug, Clone, Default)]
pub(super) struct FreeSpans {
    by_place: BTreeMap<u64, (u64, bool)>,
    by_size: BTreeSet<(u64, u64)>,
}

/// A piece of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) place: u64,
    pub(super) bytes: u64,
    pub(super) is_head: bool,
}

impl FreeSpans {
    /// Adds a piece, and merges it with its free neighbours.
    pub(super) fn insert(&mut self, span: Span) {
        let Span { mut place, mut bytes, mut is_head } = span;
        if !is_head
            && let Some((&before, &(its, its_head))) = self.by_place.range(..place).next_back()
            && before + its == place
        {
            self.remove(before);
            (place, bytes, is_head) = (before, bytes + its, its_head);
        }
        if let Some(&(its, false)) = self.by_place.get(&(place + bytes)) {
            self.remove(place + bytes);
            bytes += its;
        }
        self.by_place.insert(place, (bytes, is_head));
        self.by_size.insert((bytes, place));
    }

    /// Takes `bytes` from the smallest piece that is large enough. Of several such pieces, takes
    /// from the lowest piece. The rest of the piece stays free.
    pub(super) fn take_best(&mut self, bytes: u64) -> Option<Span> {
        let &(_, place) = self.by_size.range((bytes, 0)..).next()?;
        self.cut(place, bytes)
    }

    /// Takes `bytes` from the lowest piece that is large enough. The rest of the piece stays free.
    pub(super) fn take_first(&mut self, bytes: u64) -> Option<Span> {
        let fits = self.by_place.iter().find(|(_, (its, _))| *its >= bytes);
        let place = *fits?.0;
        self.cut(place, bytes)
    }

    /// Returns the bytes of the free piece at this place.
    pub(super) fn get(&self, place: u64) -> Option<u64> {
        self.by_place.get(&place).map(|&(bytes, _)| bytes)
    }

    /// Returns the place and the bytes of the free piece at the highest place.
    pub(super) fn last(&self) -> Option<(u64, u64)> {
        self.by_place.last_key_value().map(|(&place, &(bytes, _))| (place, bytes))
    }

    pub(super) fn remove(&mut self, place: u64) -> Option<Span> {
        let (bytes, is_head) = self.by_place.remove(&place)?;
        self.by_size.remove(&(bytes, place));
        Some(Span { place, bytes, is_head })
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Span> {
        self.by_place.iter().map(|(&place, &(bytes, is_head))| Span { place, bytes, is_head })
    }

    pub(super) fn largest(&self) -> u64 {
        self.by_size.last().map_or(0, |&(bytes, _)| bytes)
    }

    fn cut(&mut self, place: u64, bytes: u64) -> Option<Span> {
        let span = self.remove(place)?;
        if span.bytes > bytes {
            let (place, rest) = (place + bytes, span.bytes - bytes);
            self.by_place.insert(place, (rest, false));
            self.by_size.insert((rest, place));
        }
        Some(Span { bytes, ..span })
    }
}

/// Free pieces of each stream, in the order of the streams' first request.
#[derive(Debug, Clone, Default)]
pub(super) struct ByStream(pub(super) Vec<(u64, FreeSpans)>);

impl ByStream {
    pub(super) fn entry(&mut self, stream: u64) -> &mut FreeSpans {
        let known = self.0.iter().position(|(own, _)| *own == stream);
        let at = known.unwrap_or_else(|| {
            self.0.push((stream, FreeSpans::default()));
            self.0.len() - 1
        });
        &mut self.0[at].1
    }
}

/// Block that a program holds.
#[derive(Debug, Clone, Copy)]
pub(super) struct LiveSpan {
    pub(super) requested: u64,
    pub(super) span: Span,
    /// Stream of the request.
    pub(super) stream: u64,
}

/// Live blocks, keyed by ticket.
#[derive(Debug, Clone)]
pub(super) struct Live<T> {
    slots: Vec<(u32, Option<T>)>,
    spare: Vec<u32>,
}

impl<T> Default for Live<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), spare: Vec::new() }
    }
}

impl<T> Live<T> {
    pub(super) fn add(&mut self, block: T) -> Ticket {
        let slot = self.spare.pop().unwrap_or_else(|| {
            self.slots.push((0, None));
            (self.slots.len() - 1) as u32
        });
        let (generation, place) = &mut self.slots[slot as usize];
        *generation = generation.wrapping_add(1);
        *place = Some(block);
        Ticket { slot, generation: *generation }
    }

    pub(super) fn take(&mut self, ticket: Ticket) -> Option<T> {
        let (generation, block) = self.slots.get_mut(ticket.slot as usize)?;
        if *generation != ticket.generation {
            return None;
        }
        let block = block.take()?;
        self.spare.push(ticket.slot);
        Some(block)
    }
}
