//! RAPIDS' memory manager: the pool, the arena and the bins of RMM.

use std::collections::{BTreeMap, BTreeSet};

use super::spans::{FreeSpans, Live, Span};
use super::{Books, Figures, Model, Refusal, Request, SettingError, Ticket};

/// Requests are multiples of this.
const ALIGN: u64 = 256;
/// The handle of the legacy default stream, which 0 means too.
const LEGACY: u64 = 1;

fn stream_key(stream: u64) -> u64 {
    if stream == 0 { LEGACY } else { stream }
}

/// Above every address of the model's device.
const HIGHEST: u64 = 1 << 60;

/// RMM's `PoolMemoryResource` over `cudaMalloc`.
///
/// Each stream has its free list: best fit with merging. A stream that has nothing takes from the
/// others' lists, then merges them into its own, then the pool grows; it never shrinks. Other
/// streams are asked in the order in which they first appeared. RMM asks them in the order of event
/// addresses, and prefers the lower of two blocks of one size: no trace has those addresses, so a
/// program of several streams, or of many segments, can come to differ by such a tie.
#[derive(Debug, Clone)]
pub struct Pool {
    books: Books,
    initial: u64,
    maximum: Option<u64>,
    live: Live<(u64, Span)>,
    lists: Vec<(u64, FreeSpans)>,
    /// Where what was taken from the driver at once begins.
    heads: BTreeSet<u64>,
    end: u64,
}

impl Pool {
    /// Makes the pool of a device with `device_memory` bytes for this program. RMM's Python default
    /// for `initial` is half of what is free; without `maximum` the pool doubles as it grows.
    ///
    /// # Errors
    /// If a size is no multiple of 256, if `initial` is above `maximum`, or if the device has not
    /// enough for it.
    pub fn new(
        device_memory: u64,
        initial: u64,
        maximum: Option<u64>,
    ) -> Result<Self, SettingError> {
        for (name, bytes) in [("initial", initial), ("maximum", maximum.unwrap_or(0))] {
            if bytes % ALIGN != 0 {
                return Err(SettingError::new(
                    format!("{name}_pool_size is {bytes}"),
                    format!("RMM takes multiples of {ALIGN} bytes"),
                ));
            }
        }
        if maximum.is_some_and(|maximum| initial > maximum) {
            return Err(SettingError::new(
                format!("initial_pool_size is {initial}, above maximum_pool_size"),
                "lower the one or raise the other",
            ));
        }
        let mut pool = Self {
            books: Books::new(device_memory.min(maximum.unwrap_or(u64::MAX))),
            initial,
            maximum,
            live: Live::default(),
            lists: Vec::new(),
            heads: BTreeSet::new(),
            end: ALIGN,
        };
        if initial > 0 {
            match pool.take_new(initial, LEGACY) {
                Some(span) => pool.list(LEGACY).insert(span),
                None => {
                    return Err(SettingError::new(
                        format!("initial_pool_size is {initial}, more than the device has"),
                        "lower it",
                    ));
                }
            }
        }
        Ok(pool)
    }

    fn list(&mut self, stream: u64) -> &mut FreeSpans {
        let at = match self.lists.iter().position(|(own, _)| *own == stream) {
            Some(at) => at,
            None => {
                self.lists.push((stream, FreeSpans::default()));
                self.lists.len() - 1
            }
        };
        &mut self.lists[at].1
    }

    fn take_new(&mut self, bytes: u64, stream: u64) -> Option<Span> {
        // `cudaMalloc` mostly gives lower addresses to what it gives later (H200, driver 580).
        let place = HIGHEST.saturating_sub(self.end).saturating_sub(bytes);
        if !self.books.take(bytes, stream, place) {
            return None;
        }
        self.end = self.end.saturating_add(bytes);
        self.heads.insert(place);
        Some(Span { place, bytes, is_head: true })
    }

    fn take(&mut self, bytes: u64, stream: u64) -> Option<Span> {
        if let Some(span) = self.list(stream).take_best(bytes) {
            return Some(span);
        }
        let others = self.lists.iter_mut().filter(|(own, _)| *own != stream);
        for (_, other) in others {
            if let Some(span) = other.take_best(bytes) {
                return Some(span);
            }
        }
        for at in 0..self.lists.len() {
            let (own, spans) = &mut self.lists[at];
            if *own == stream {
                continue;
            }
            let other = std::mem::take(spans);
            let own = self.list(stream);
            other.iter().for_each(|span| own.insert(span));
            if let Some(span) = own.take_best(bytes) {
                return Some(span);
            }
        }
        let span = self.grow(bytes, stream)?;
        let own = self.list(stream);
        own.insert(span);
        own.take_best(bytes)
    }

    /// Takes as much as RMM would like to, or half of it until the request is all.
    fn grow(&mut self, bytes: u64, stream: u64) -> Option<Span> {
        let size = self.books.figures.reserved;
        let mut attempt = match self.maximum {
            None => bytes.max(size),
            Some(maximum) => {
                let left = maximum.saturating_sub(size);
                if bytes > left {
                    return None;
                }
                bytes.max(left / 2)
            }
        };
        loop {
            if let Some(span) = self.take_new(attempt, stream) {
                return Some(span);
            }
            if attempt <= bytes {
                return None;
            }
            attempt = bytes.max(attempt / 2);
        }
    }
}

impl Model for Pool {
    fn name(&self) -> String {
        let maximum = self.maximum.map(|bytes| format!(",maximum_pool_size:{bytes}"));
        format!("rmm:pool:initial_pool_size:{}{}", self.initial, maximum.unwrap_or_default())
    }

    fn allocate(&mut self, request: Request) -> Result<Ticket, Box<Refusal>> {
        if request.bytes == 0 {
            return Ok(Ticket::NONE);
        }
        let stream = stream_key(request.stream);
        let rounded = request.bytes.checked_next_multiple_of(ALIGN);
        let Some(span) = rounded.and_then(|bytes| self.take(bytes, stream)) else {
            let largest = self.list(stream).largest();
            return Err(self.books.refuse(request, rounded.unwrap_or(request.bytes), largest));
        };
        self.books.handed_out(request.bytes, span.bytes);
        Ok(self.live.add((request.bytes, span)))
    }

    fn free(&mut self, ticket: Ticket, stream: u64) {
        let Some((requested, span)) = self.live.take(ticket) else { return };
        self.books.freed(requested, span.bytes);
        let is_head = self.heads.contains(&span.place);
        self.list(stream_key(stream)).insert(Span { is_head, ..span });
    }

    fn books(&self) -> &Books {
        &self.books
    }
}

/// The smallest superblock of an arena; larger requests go to the global arena.
const SUPERBLOCK: u64 = 1 << 20;

/// RMM's `ArenaMemoryResource` over `cudaMalloc`: a fixed size, an arena for each stream.
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
    /// The place of the lowest superblock with a free piece of `bytes`.
    fn first_fit(&self, bytes: u64) -> Option<u64> {
        let mut blocks = self.0.iter();
        blocks.find(|(_, block)| block.free.largest() >= bytes).map(|(&place, _)| place)
    }

    /// Takes a superblock with a free piece of `bytes` out; of an empty one only what is needed.
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

    /// Puts a superblock back, merged with empty ones beside it if it is empty.
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

    /// The superblock that holds a span.
    fn holding(&self, span: Span) -> Option<u64> {
        let (&place, block) = self.0.range(..=span.place).next_back()?;
        (place + block.bytes >= span.place + span.bytes).then_some(place)
    }

    fn largest(&self) -> u64 {
        self.0.values().map(|block| block.free.largest()).max().unwrap_or(0)
    }
}

impl Arena {
    /// Makes the arena of a device with `device_memory` bytes for this program. RMM's default for
    /// `arena_size` is half of what is free.
    ///
    /// # Errors
    /// If `arena_size` is less than 1 MiB or more than the device has.
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

    /// Returns all superblocks of arenas to the global arena, those in use too.
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

    fn allocate(&mut self, request: Request) -> Result<Ticket, Box<Refusal>> {
        if request.bytes == 0 {
            return Ok(Ticket::NONE);
        }
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
        if span.bytes > SUPERBLOCK
            && let Some(place) = self.global.holding(span)
            && let Some(mut block) = self.global.0.remove(&place)
        {
            block.free.insert(span);
            self.global.put_back(place, block);
            return;
        }
        let own = self.arenas.get_mut(&stream_key(stream));
        let holds = |arena: &&mut Superblocks| arena.holding(span).is_some();
        let arena = match own.filter(|arena| holds(arena)) {
            Some(own) => Some(own),
            None => self.arenas.values_mut().find(holds),
        };
        if let Some(arena) = arena {
            if let Some(block) = arena.holding(span).and_then(|place| arena.0.get_mut(&place)) {
                block.free.insert(span);
            }
        } else if let Some(place) = self.global.holding(span)
            && let Some(mut block) = self.global.0.remove(&place)
        {
            block.free.insert(span);
            self.global.put_back(place, block);
        }
    }

    fn books(&self) -> &Books {
        &self.books
    }
}

/// RMM's `BinningMemoryResource`: bins of fixed sizes over another resource, each with 128 blocks
/// taken in advance.
#[derive(Debug)]
pub struct Binning<M> {
    upstream: M,
    bins: Vec<Bin>,
    live: Live<Binned>,
    figures: Figures,
}

#[derive(Debug)]
struct Bin {
    bytes: u64,
    free: u64,
}

#[derive(Debug, Clone, Copy)]
enum Binned {
    Block { bin: usize, requested: u64 },
    Upstream(Ticket),
}

/// Blocks that a bin takes at once.
const BIN_BLOCKS: u64 = 128;

impl<M: Model> Binning<M> {
    /// Makes bins of `2^smallest` to `2^largest` bytes over `upstream`.
    ///
    /// # Errors
    /// If there is no bin, or if the upstream has not enough for the blocks.
    pub fn new(upstream: M, smallest: u32, largest: u32) -> Result<Self, SettingError> {
        if smallest > largest || largest >= 40 || smallest < 8 {
            return Err(SettingError::new(
                format!("bins of 2^{smallest} to 2^{largest} bytes"),
                "give exponents between 8 and 39, the smaller one first, for example 18 and 22",
            ));
        }
        let bins = (smallest..=largest).map(|power| Bin { bytes: 1 << power, free: 0 }).collect();
        let figures = upstream.figures();
        let mut binning = Self { upstream, bins, live: Live::default(), figures };
        for bin in 0..binning.bins.len() {
            if binning.fill(bin, 0).is_err() {
                return Err(SettingError::new(
                    "the upstream has not enough memory for the bins",
                    "use fewer or smaller bins",
                ));
            }
        }
        binning.copy_reserved();
        Ok(binning)
    }

    fn fill(&mut self, bin: usize, stream: u64) -> Result<(), Box<Refusal>> {
        let bytes = self.bins[bin].bytes * BIN_BLOCKS;
        self.upstream.allocate(Request { bytes, stream, pool: 0 })?;
        self.bins[bin].free += BIN_BLOCKS;
        Ok(())
    }

    fn copy_reserved(&mut self) {
        let Figures { reserved, peak_reserved, segments, driver_calls, retries, .. } =
            self.upstream.figures();
        self.figures =
            Figures { reserved, peak_reserved, segments, driver_calls, retries, ..self.figures };
    }

    fn serve(&mut self, request: Request) -> Result<Ticket, Box<Refusal>> {
        let Some(bin) = self.bins.iter().position(|bin| bin.bytes >= request.bytes) else {
            let before = self.upstream.figures().allocated;
            let ticket = self.upstream.allocate(request)?;
            self.figures.allocated += self.upstream.figures().allocated - before;
            return Ok(self.live.add(Binned::Upstream(ticket)));
        };
        if self.bins[bin].free == 0 {
            self.fill(bin, request.stream)?;
        }
        self.bins[bin].free -= 1;
        self.figures.allocated += self.bins[bin].bytes;
        self.figures.requested += request.bytes;
        Ok(self.live.add(Binned::Block { bin, requested: request.bytes }))
    }
}

impl<M: Model> Model for Binning<M> {
    fn name(&self) -> String {
        "rmm:binning".to_owned()
    }

    fn allocate(&mut self, request: Request) -> Result<Ticket, Box<Refusal>> {
        if request.bytes == 0 {
            return Ok(Ticket::NONE);
        }
        let result = self.serve(request);
        self.copy_reserved();
        let figures = &mut self.figures;
        figures.active = figures.allocated;
        figures.peak_active = figures.peak_active.max(figures.active);
        result.map_err(|mut refusal| {
            figures.failures += 1;
            refusal.figures = *figures;
            refusal
        })
    }

    fn free(&mut self, ticket: Ticket, stream: u64) {
        match self.live.take(ticket) {
            None => return,
            Some(Binned::Block { bin, requested }) => {
                self.bins[bin].free += 1;
                self.figures.allocated -= self.bins[bin].bytes;
                self.figures.requested -= requested;
            }
            Some(Binned::Upstream(ticket)) => {
                let before = self.upstream.figures().allocated;
                self.upstream.free(ticket, stream);
                self.upstream.complete(ticket);
                self.figures.allocated -= before - self.upstream.figures().allocated;
            }
        }
        self.figures.active = self.figures.allocated;
        self.copy_reserved();
    }

    fn books(&self) -> &Books {
        self.upstream.books()
    }

    fn figures(&self) -> Figures {
        self.figures
    }
}

#[cfg(test)]
mod tests {
    use super::super::cuda::Cuda;
    use super::*;

    const MIB: u64 = 1 << 20;

    fn request(bytes: u64, stream: u64) -> Request {
        Request { bytes, stream, pool: 0 }
    }

    /// RMM's issue 1957: chunks never merge.
    #[test]
    fn pool_with_an_initial_size_cannot_serve_its_maximum() {
        let mut pool = Pool::new(1 << 30, 256, Some(1024)).unwrap();
        assert!(pool.allocate(request(1024, 0)).is_err());
        assert!(pool.allocate(request(256, 0)).is_ok());
    }

    #[test]
    fn pool_doubles_without_a_maximum_and_takes_less_if_there_is_less() {
        let mut pool = Pool::new(100 * MIB, 16 * MIB, None).unwrap();
        pool.allocate(request(16 * MIB, 0)).unwrap();
        pool.allocate(request(MIB, 0)).unwrap();
        assert_eq!(pool.figures().reserved, 32 * MIB);
        pool.allocate(request(30 * MIB, 0)).unwrap();
        assert_eq!(pool.figures().reserved, 64 * MIB);
        // 64 MiB are not there. Half of that is less than the request: the request is tried.
        pool.allocate(request(35 * MIB, 0)).unwrap();
        assert_eq!(pool.figures().reserved, 99 * MIB);
    }

    #[test]
    fn pool_takes_what_other_streams_freed_before_it_grows() {
        let mut pool = Pool::new(1 << 30, 4 * MIB, None).unwrap();
        let one = pool.allocate(request(2 * MIB, 5)).unwrap();
        let other = pool.allocate(request(2 * MIB, 6)).unwrap();
        pool.free(one, 5);
        pool.free(other, 6);
        // Neither list has 4 MiB: they are merged.
        pool.allocate(request(4 * MIB, 7)).unwrap();
        assert_eq!(pool.figures().reserved, 4 * MIB);
        assert!(Pool::new(1 << 30, 100, None).is_err());
        assert!(Pool::new(1 << 30, 512, Some(256)).is_err());
        assert!(Pool::new(1 << 20, 1 << 30, None).is_err());
    }

    #[test]
    fn bins_take_992_mib_in_advance() {
        let mut binning = Binning::new(Cuda::new(4 << 30), 18, 22).unwrap();
        assert_eq!(binning.figures().reserved, 992 * MIB);
        let tickets: Vec<_> = (0..129).map(|_| binning.allocate(request(1, 0)).unwrap()).collect();
        assert_eq!(binning.figures().reserved, (992 + 32) * MIB);
        tickets.into_iter().for_each(|ticket| binning.free(ticket, 0));
        let large = binning.allocate(request((4 << 20) + 1, 0)).unwrap();
        assert_eq!(binning.figures().reserved, (992 + 32 + 6) * MIB);
        binning.free(large, 0);
        assert_eq!(binning.figures().allocated, 0);
        assert!(Binning::new(Cuda::new(MIB), 18, 22).is_err());
    }

    #[test]
    fn arena_has_a_fixed_size_and_gives_superblocks_back_before_it_fails() {
        let mut arena = Arena::new(64 * MIB, Some(8 * MIB)).unwrap();
        assert_eq!(arena.figures().reserved, 8 * MIB);
        let small: Vec<_> =
            (0..8).map(|stream| arena.allocate(request(1000, stream + 3)).unwrap()).collect();
        // Each stream holds a superblock of 1 MiB: nothing is left for a large request.
        assert!(arena.allocate(request(2 * MIB, 3)).is_err());
        small.iter().zip(3..).for_each(|(&ticket, stream)| arena.free(ticket, stream));
        let large = arena.allocate(request(8 * MIB, 3)).unwrap();
        arena.free(large, 4);
        assert_eq!(arena.figures().allocated, 0);
        assert!(Arena::new(64 * MIB, Some(1)).is_err());
        assert!(Arena::new(MIB, Some(8 * MIB)).is_err());
    }
}
