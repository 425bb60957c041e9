//! PyTorch's own allocator for CUDA, `CUDACachingAllocator`.
//!
//! Faithful to the byte: rounding, the pools of small and of large blocks, segment sizes, best fit
//! by stream, size and address, splitting, oversize blocks, garbage collection, segments that grow
//! in place, blocks that wait for other streams, private pools, and everything that is tried before
//! a request fails. That is so of PyTorch 2.11, which the recorded traces were made with;
//! [`Version`] says in what other releases differ.

mod free_blocks;
mod settings;
mod version;

use std::collections::BTreeMap;

pub use settings::Settings;
pub use version::Version;

use self::free_blocks::FreeBlocks;
use super::addresses::Addresses;
use super::{Books, DriverEvent, Model, Refusal, Request, Ticket};

/// Bytes of the smallest block; sizes are multiples of it.
const MIN_BLOCK: u64 = 512;
/// The largest request that is served from the pool of small blocks.
const SMALL: u64 = 1 << 20;
/// Bytes of a segment of small blocks.
const SMALL_SEGMENT: u64 = 2 << 20;
/// Requests from this size on get a segment of their own, a multiple of 2 MiB.
const OWN_SEGMENT: u64 = 10 << 20;
/// Segments are multiples of this.
const SEGMENT_GRANULE: u64 = 2 << 20;
/// Requests above 1 EiB are refused at once.
const LARGEST_REQUEST: u64 = 1 << 60;

/// No block.
const NONE: u32 = u32::MAX;
/// The segment of a block that does not grow.
const FIXED: u32 = u32::MAX;

/// The model of PyTorch's allocator on one device.
#[derive(Debug, Clone)]
pub struct Torch {
    settings: Settings,
    /// Bytes that the memory fraction allows, if one was set.
    allowed: Option<u64>,
    blocks: Vec<Block>,
    spare: Vec<u32>,
    /// Large and small blocks of the common memory, then of each private pool.
    pools: Vec<Pool>,
    private_pools: Vec<u32>,
    growing: Vec<Growing>,
    pending: Vec<u32>,
    addresses: Addresses,
    books: Books,
}

/// A piece of a segment.
#[derive(Debug, Clone, Copy)]
struct Block {
    address: u64,
    bytes: u64,
    requested: u64,
    stream: u64,
    /// The neighbours in the segment.
    previous: u32,
    next: u32,
    pool: u32,
    /// The segment that it belongs to, if that grows in place.
    growing: u32,
    generation: u32,
    /// Index in the list of pending blocks.
    pending: u32,
    /// Searches of the pool until the block became free.
    searches_before: u64,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Allocated,
    /// Freed by the program, but other streams still use it.
    Pending,
    Free,
    /// Addresses of a growing segment that have no memory.
    Unmapped,
    /// A number that no block has.
    Spare,
}

/// A range of addresses in which a segment grows.
#[derive(Debug, Clone, Copy)]
struct Growing {
    base: u64,
    bytes: u64,
    /// Bytes of each piece of memory that is mapped.
    piece: u64,
}

#[derive(Debug, Clone)]
struct Pool {
    is_small: bool,
    /// Of each stream, by handle.
    streams: Vec<OfStream>,
    /// Index of the stream that was asked for last.
    last: usize,
    /// How often the pool was searched, while that is counted.
    searches: u64,
}

#[derive(Debug, Clone, Default)]
struct OfStream {
    stream: u64,
    free: FreeBlocks,
    /// Addresses without memory, of growing segments.
    unmapped: BTreeMap<u64, u32>,
}

/// What is looked for.
#[derive(Clone, Copy)]
struct Wanted {
    bytes: u64,
    /// What is taken from the driver for it.
    segment_bytes: u64,
    pool: u32,
    stream: u64,
}

impl Pool {
    fn new(is_small: bool) -> Self {
        Self { is_small, streams: Vec::new(), last: 0, searches: 0 }
    }

    fn of(&self, stream: u64) -> Option<&OfStream> {
        if let Some(last) = self.streams.get(self.last)
            && last.stream == stream
        {
            return Some(last);
        }
        self.streams.iter().find(|of| of.stream == stream)
    }

    fn of_mut(&mut self, stream: u64) -> &mut OfStream {
        if self.streams.get(self.last).is_some_and(|last| last.stream == stream) {
            return &mut self.streams[self.last];
        }
        let at = self.streams.iter().position(|of| of.stream >= stream);
        let at = at.unwrap_or(self.streams.len());
        if self.streams.get(at).is_none_or(|of| of.stream != stream) {
            self.streams.insert(at, OfStream { stream, ..OfStream::default() });
        }
        self.last = at;
        &mut self.streams[at]
    }
}

impl Torch {
    /// Makes the allocator of a device that has `device_memory` bytes in all. PyTorch's memory
    /// fraction is a part of these.
    pub fn new(settings: Settings, device_memory: u64) -> Self {
        let books = Books::new(device_memory);
        let limits = |fraction: &f64| *fraction < 1.0 || settings.version.limits_to_whole_device();
        let fraction = settings.memory_fraction().filter(limits);
        let allowed = fraction.map(|fraction| part(books.allowed, fraction));
        Self {
            settings,
            allowed,
            blocks: Vec::new(),
            spare: Vec::new(),
            pools: vec![Pool::new(false), Pool::new(true)],
            private_pools: Vec::new(),
            growing: Vec::new(),
            pending: Vec::new(),
            addresses: Addresses::default(),
            books,
        }
    }

    /// Limits what the device has for this allocator to `bytes`: what other programs and CUDA
    /// itself leave to it. The memory fraction stays a part of the whole device.
    pub fn set_capacity(&mut self, bytes: u64) {
        self.books.set_allowed(bytes);
    }

    /// Uses the addresses of a recording for segments that are taken whole: address and bytes, in
    /// order. At the first segment of another size, or one that no address space has, the model goes
    /// on with addresses of its own.
    pub fn follow_addresses(&mut self, recorded: impl IntoIterator<Item = (u64, u64)>) {
        self.addresses.follow(recorded);
    }

    /// Adds a segment that was taken before the recording began, without counting it as an event.
    /// Returns whether that could be done: a segment that grows in place cannot be added.
    pub fn add_segment(&mut self, address: u64, bytes: u64, stream: u64, is_small: bool) -> bool {
        let fits = bytes <= self.books.allowed.saturating_sub(self.books.figures.reserved);
        let is_range = bytes > 0 && address.checked_add(bytes).is_some();
        if self.settings.expandable_segments || !is_range || !fits {
            return false;
        }
        let pool = u32::from(is_small);
        let block = self.new_block(address, bytes, stream, pool);
        self.insert_free(block);
        self.books.figures.segments += 1;
        self.took(bytes);
        true
    }

    /// Hands out the block at `address` for a request of `bytes`, as [`Model::allocate`] would if
    /// that block were the best. Returns `None` if no free block has these addresses.
    pub fn allocate_at(&mut self, request: Request, address: u64) -> Option<Ticket> {
        let bytes = self.settings.rounded(request.bytes);
        let end = address.checked_add(bytes)?;
        let (pool, found) = self.pools.iter().enumerate().find_map(|(pool, of)| {
            let free = &of.of(request.stream)?.free;
            let holds = |&(bytes, block): &(u64, u32)| {
                let start = self.blocks[block as usize].address;
                start <= address && start.saturating_add(bytes) >= end
            };
            free.iter().find(holds).map(|(_, block)| (pool as u32, block))
        })?;
        self.remove_free(found);
        let before = address - self.blocks[found as usize].address;
        if before > 0 {
            if !self.blocks[found as usize].is_split() {
                self.books.figures.inactive_split += self.blocks[found as usize].bytes;
            }
            let front = self.split_front(found, before);
            self.insert_free(front);
        }
        let wanted = Wanted { bytes, segment_bytes: bytes, pool, stream: request.stream };
        let rest = self.blocks[found as usize].bytes - bytes;
        let ticket = self.hand_out(found, wanted, request.bytes, rest >= MIN_BLOCK);
        Some(ticket)
    }

    /// Returns the address of a live block.
    pub fn address(&self, ticket: Ticket) -> Option<u64> {
        let block = self.blocks.get(ticket.slot as usize)?;
        (block.generation == ticket.generation && block.state == State::Allocated)
            .then_some(block.address)
    }

    /// Returns the settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    fn limit(&self) -> u64 {
        self.allowed.unwrap_or(u64::MAX).min(self.books.allowed)
    }

    fn collects_garbage(&self) -> bool {
        self.allowed.is_some() && self.settings.garbage_collection_threshold > 0.0
    }

    fn segment_bytes(&self, bytes: u64) -> u64 {
        if bytes <= SMALL {
            SMALL_SEGMENT
        } else if bytes < OWN_SEGMENT {
            self.settings.large_segment
        } else {
            bytes.next_multiple_of(SEGMENT_GRANULE)
        }
    }

    /// The pool's index in `pools`; a private pool is made at its first request.
    fn pool_of(&mut self, bytes: u64, private: u32) -> u32 {
        let first = match private {
            0 => 0,
            _ => match self.private_pools.iter().position(|&known| known == private) {
                Some(index) => 2 + 2 * index,
                None => {
                    self.private_pools.push(private);
                    self.pools.extend([Pool::new(false), Pool::new(true)]);
                    self.pools.len() - 2
                }
            },
        };
        first as u32 + u32::from(bytes <= SMALL)
    }

    fn serve(&mut self, wanted: Wanted) -> Option<u32> {
        if let Some(block) = self.find_free(wanted) {
            return Some(block);
        }
        if self.collects_garbage() {
            self.collect_garbage();
        }
        if let Some(block) = self.take_segment(wanted) {
            return Some(block);
        }
        if self.release_oversize(wanted)
            && let Some(block) = self.take_segment(wanted)
        {
            return Some(block);
        }
        self.release_cached();
        self.books.figures.retries += 1;
        self.take_segment(wanted)
    }

    /// The best free block, taken out of its pool.
    fn find_free(&mut self, wanted: Wanted) -> Option<u32> {
        if self.collects_garbage() {
            self.pools[wanted.pool as usize].searches += 1;
        }
        let free = &self.pools[wanted.pool as usize].of(wanted.stream)?.free;
        let mut position = free.find(wanted.bytes);
        let (mut found_bytes, mut found) = free.get(position)?;
        let is_fixed = |block: u32| self.blocks[block as usize].growing == FIXED;
        if !is_fixed(found) && self.settings.expandable_segments {
            // A block that can grow counts as large as it can become.
            let mut next = free.after(position);
            while let Some((next_bytes, next_block)) = free.get(next)
                && !is_fixed(found)
                && self.grown_bytes(next_block) < self.grown_bytes(found)
            {
                (position, found_bytes, found) = (next, next_bytes, next_block);
                next = free.after(next);
            }
        } else {
            while !is_fixed(found) {
                position = free.after(position);
                (found_bytes, found) = free.get(position)?;
            }
        }
        let most = self.settings.max_split_size;
        if wanted.bytes < most && found_bytes >= most {
            return None;
        }
        let slack = self.settings.max_non_split_rounding;
        if wanted.bytes >= most && found_bytes >= wanted.bytes.saturating_add(slack) {
            return None;
        }
        self.pools[wanted.pool as usize].of_mut(wanted.stream).free.remove_at(position);
        Some(found)
    }

    fn grown_bytes(&self, block: u32) -> u64 {
        let Block { bytes, next, .. } = self.blocks[block as usize];
        match self.blocks.get(next as usize) {
            Some(next) if next.state == State::Unmapped => bytes.saturating_add(next.bytes),
            _ => bytes,
        }
    }

    /// A block of new memory, in no pool yet.
    fn take_segment(&mut self, wanted: Wanted) -> Option<u32> {
        let bytes = wanted.segment_bytes;
        let after = self.books.figures.reserved.checked_add(bytes)?;
        if self.allowed.is_some_and(|allowed| after > allowed) {
            return None;
        }
        if self.settings.expandable_segments {
            return self.grow(wanted);
        }
        if after > self.books.allowed {
            return None;
        }
        let address = self.addresses.take(bytes);
        let block = self.new_block(address, bytes, wanted.stream, wanted.pool);
        self.books.figures.segments += 1;
        self.took(bytes);
        self.event(true, bytes, wanted.stream, address);
        Some(block)
    }

    /// A block of a segment that grows in place, mapped far enough and in no pool.
    fn grow(&mut self, wanted: Wanted) -> Option<u32> {
        let mut block = self.room_to_grow(wanted)?;
        if self.blocks[block as usize].state == State::Unmapped {
            let bytes = wanted.bytes.min(self.blocks[block as usize].bytes);
            self.map(block, bytes)?;
        }
        while self.blocks[block as usize].bytes < wanted.bytes {
            let Block { bytes, next, .. } = self.blocks[block as usize];
            let missing = (wanted.bytes - bytes).min(self.blocks.get(next as usize)?.bytes);
            self.map(next, missing)?;
            block = next;
        }
        self.remove_free(block);
        Some(block)
    }

    /// The lowest place where free and unmapped neighbours are large enough, or a new segment.
    fn room_to_grow(&mut self, wanted: Wanted) -> Option<u32> {
        if let Some(of) = self.pools[wanted.pool as usize].of(wanted.stream) {
            for &unmapped in of.unmapped.values() {
                let before = self.blocks[unmapped as usize].previous;
                let start = if self.is_available(before) { before } else { unmapped };
                let (mut bytes, mut block) = (0_u64, start);
                while bytes < wanted.bytes && self.is_available(block) {
                    bytes = bytes.saturating_add(self.blocks[block as usize].bytes);
                    block = self.blocks[block as usize].next;
                }
                if bytes >= wanted.bytes {
                    return Some(start);
                }
            }
        }
        let is_small = self.pools[wanted.pool as usize].is_small;
        let piece = if is_small { SMALL_SEGMENT } else { self.settings.large_segment };
        let bytes = self
            .books
            .allowed
            .checked_add(self.books.allowed / 8)?
            .checked_next_multiple_of(piece)?;
        if bytes < wanted.bytes {
            return None;
        }
        let base = self.addresses.take_growing(bytes);
        let block = self.new_block(base, bytes, wanted.stream, wanted.pool);
        let growing = self.growing.len() as u32;
        self.growing.push(Growing { base, bytes, piece });
        let new = &mut self.blocks[block as usize];
        new.growing = growing;
        new.state = State::Unmapped;
        self.pools[wanted.pool as usize].of_mut(wanted.stream).unmapped.insert(base, block);
        Some(block)
    }

    fn is_available(&self, block: u32) -> bool {
        let state = self.blocks.get(block as usize).map(|block| block.state);
        matches!(state, Some(State::Free | State::Unmapped))
    }

    /// Maps at least `bytes` at the start of an unmapped block, which becomes free memory. `None`
    /// if the device has not enough.
    fn map(&mut self, block: u32, bytes: u64) -> Option<()> {
        let Block { address, bytes: room, stream, pool, growing, next, .. } =
            self.blocks[block as usize];
        let Growing { piece, .. } = *self.growing.get(growing as usize)?;
        let mapped = bytes.checked_next_multiple_of(piece)?.min(room);
        if self.books.figures.reserved.checked_add(mapped)? > self.books.allowed {
            return None;
        }
        self.pools[pool as usize].of_mut(stream).unmapped.remove(&address);
        if mapped < room {
            let rest = self.new_block(address + mapped, room - mapped, stream, pool);
            self.link(block, rest, next);
            let rest_block = &mut self.blocks[rest as usize];
            rest_block.growing = growing;
            rest_block.state = State::Unmapped;
            self.pools[pool as usize].of_mut(stream).unmapped.insert(address + mapped, rest);
            self.blocks[block as usize].bytes = mapped;
        }
        self.blocks[block as usize].state = State::Free;
        self.merge_neighbours(block);
        self.insert_free(block);
        self.took(mapped);
        self.event(true, mapped, stream, address);
        Some(())
    }

    /// Unmaps the whole pieces in a free block of a growing segment.
    fn unmap(&mut self, block: u32) {
        let Block { address, bytes, stream, pool, growing, previous, next, .. } =
            self.blocks[block as usize];
        let Some(&Growing { base, bytes: of_segment, piece }) = self.growing.get(growing as usize)
        else {
            return;
        };
        let begin = base + (address - base).next_multiple_of(piece);
        let end = base + (address + bytes - base) / piece * piece;
        if begin >= end {
            return;
        }
        self.remove_free(block);
        if begin > address {
            let before = self.new_block(address, begin - address, stream, pool);
            self.blocks[before as usize].growing = growing;
            self.link(previous, before, block);
            self.insert_free(before);
        }
        if address + bytes > end {
            let after = self.new_block(end, address + bytes - end, stream, pool);
            self.blocks[after as usize].growing = growing;
            self.link(block, after, next);
            self.insert_free(after);
        }
        let unmapped = end - begin;
        let this = &mut self.blocks[block as usize];
        this.address = begin;
        this.bytes = unmapped;
        this.state = State::Unmapped;
        self.merge_neighbours(block);
        let this = self.blocks[block as usize];
        self.pools[pool as usize].of_mut(stream).unmapped.insert(this.address, block);
        self.gave_back(unmapped);
        self.event(false, unmapped, stream, begin);
        if this.bytes == of_segment {
            self.pools[pool as usize].of_mut(stream).unmapped.remove(&this.address);
            self.discard(block);
        }
    }

    /// Hands out the front of a block that is in no pool.
    fn hand_out(&mut self, found: u32, wanted: Wanted, requested: u64, splits: bool) -> Ticket {
        let block = if splits {
            self.count_split(found, wanted.bytes);
            let front = self.split_front(found, wanted.bytes);
            self.insert_free(found);
            front
        } else {
            let Block { bytes, .. } = self.blocks[found as usize];
            if self.counts_as_split(found) {
                self.books.figures.inactive_split =
                    self.books.figures.inactive_split.saturating_sub(bytes);
            }
            found
        };
        let this = &mut self.blocks[block as usize];
        this.state = State::Allocated;
        this.requested = requested;
        this.generation = this.generation.wrapping_add(1);
        let (bytes, generation) = (this.bytes, this.generation);
        let figures = &mut self.books.figures;
        figures.allocated += bytes;
        figures.active += bytes;
        figures.peak_active = figures.peak_active.max(figures.active);
        figures.requested = figures.requested.saturating_add(requested);
        Ticket { slot: block, generation }
    }

    /// Splits `front` bytes off a block: a new block before it.
    fn split_front(&mut self, block: u32, front: u64) -> u32 {
        let Block { address, stream, pool, growing, previous, .. } = self.blocks[block as usize];
        let new = self.new_block(address, front, stream, pool);
        self.blocks[new as usize].growing = growing;
        self.link(previous, new, block);
        let rest = &mut self.blocks[block as usize];
        rest.address += front;
        rest.bytes -= front;
        new
    }

    fn count_split(&mut self, block: u32, front: u64) {
        let Block { bytes, growing, .. } = self.blocks[block as usize];
        if growing != FIXED {
            return;
        }
        let inactive = &mut self.books.figures.inactive_split;
        if self.blocks[block as usize].is_split() {
            *inactive = inactive.saturating_sub(front);
        } else {
            *inactive += bytes - front;
        }
    }

    fn counts_as_split(&self, block: u32) -> bool {
        let block = &self.blocks[block as usize];
        block.is_split() && block.growing == FIXED
    }

    fn should_split(&self, block: u32, wanted: Wanted) -> bool {
        let rest = self.blocks[block as usize].bytes.saturating_sub(wanted.bytes);
        if self.pools[wanted.pool as usize].is_small || self.settings.expandable_segments {
            rest >= MIN_BLOCK
        } else {
            wanted.bytes < self.settings.max_split_size && rest > SMALL
        }
    }

    /// Puts a block that nobody uses back into its pool, merged with its free neighbours.
    fn free_block(&mut self, block: u32) {
        let Block { bytes, growing, .. } = self.blocks[block as usize];
        self.books.figures.active -= bytes;
        self.blocks[block as usize].state = State::Free;
        let merged = self.merge_neighbours(block);
        self.insert_free(block);
        if growing == FIXED {
            let inactive = &mut self.books.figures.inactive_split;
            *inactive = inactive.saturating_sub(merged);
            if self.blocks[block as usize].is_split() {
                *inactive += self.blocks[block as usize].bytes;
            }
        }
    }

    /// Merges neighbours in the block's own state into it. Returns their bytes.
    fn merge_neighbours(&mut self, block: u32) -> u64 {
        let Block { previous, next, .. } = self.blocks[block as usize];
        self.merge(block, previous) + self.merge(block, next)
    }

    fn merge(&mut self, block: u32, neighbour: u32) -> u64 {
        let Some(other) = self.blocks.get(neighbour as usize) else { return 0 };
        let into = &self.blocks[block as usize];
        if other.state != into.state {
            return 0;
        }
        let (other, is_before) = (*other, into.previous == neighbour);
        let of_stream = self.pools[other.pool as usize].of_mut(other.stream);
        if other.state == State::Free {
            of_stream.free.remove(other.bytes, other.address);
        } else {
            of_stream.unmapped.remove(&other.address);
        }
        if is_before {
            self.blocks[block as usize].address = other.address;
            self.join(other.previous, block);
        } else {
            self.join(block, other.next);
        }
        self.blocks[block as usize].bytes += other.bytes;
        self.discard(neighbour);
        other.bytes
    }

    fn insert_free(&mut self, block: u32) {
        let Block { address, bytes, stream, pool, .. } = self.blocks[block as usize];
        let pool = &mut self.pools[pool as usize];
        let this = &mut self.blocks[block as usize];
        this.searches_before = pool.searches;
        this.state = State::Free;
        pool.of_mut(stream).free.insert(bytes, address, block);
    }

    fn remove_free(&mut self, block: u32) {
        let Block { address, bytes, stream, pool, .. } = self.blocks[block as usize];
        self.pools[pool as usize].of_mut(stream).free.remove(bytes, address);
    }

    /// Gives back unused large segments, oldest first, until the threshold is met.
    fn collect_garbage(&mut self) {
        let allowed = self.allowed.unwrap_or(u64::MAX);
        let threshold = part(allowed, self.settings.garbage_collection_threshold);
        if self.books.figures.reserved <= threshold {
            return;
        }
        let target = self.books.figures.reserved - threshold;
        let searches = self.pools[0].searches;
        let unsplit = |torch: &Self| -> Vec<(u32, u64)> {
            let free = torch.pools[0].streams.iter().flat_map(|of| of.free.iter());
            free.filter(|&(_, block)| {
                let block = &torch.blocks[block as usize];
                !block.is_split() && block.growing == FIXED
            })
            .map(|(_, block)| (block, searches - torch.blocks[block as usize].searches_before))
            .collect()
        };
        let mut blocks = unsplit(self);
        let mut total_age: u64 = blocks.iter().map(|&(_, age)| age).sum();
        let mut given_back = 0;
        while given_back < target && !blocks.is_empty() {
            let oldest = total_age as f64 / blocks.len() as f64;
            let (old, young): (Vec<_>, Vec<_>) =
                blocks.into_iter().partition(|&(_, age)| age as f64 >= oldest);
            if old.is_empty() {
                break;
            }
            for (block, age) in old {
                given_back += self.blocks[block as usize].bytes;
                total_age -= age;
                self.release(block);
            }
            blocks = young;
        }
    }

    /// Gives back oversize blocks of the stream, only as many as the request needs. Returns whether
    /// they are enough.
    fn release_oversize(&mut self, wanted: Wanted) -> bool {
        let most = self.settings.max_split_size;
        if most == u64::MAX {
            return false;
        }
        let needed = wanted.bytes.max(most);
        let Some(of) = self.pools[wanted.pool as usize].of(wanted.stream) else { return false };
        let is_fixed = |block: u32| self.blocks[block as usize].growing == FIXED;
        if let Some((_, block)) = of.free.get(of.free.find(needed))
            && is_fixed(block)
        {
            self.release(block);
            return true;
        }
        let largest_first = of.free.iter().rev().skip_while(|&(bytes, _)| bytes >= needed);
        let oversize = largest_first.take_while(|&(bytes, _)| bytes >= most);
        let mut given_back = 0_u64;
        let mut released = Vec::new();
        for (bytes, block) in oversize {
            if given_back >= needed {
                break;
            }
            if is_fixed(block) {
                given_back = given_back.saturating_add(bytes);
                released.push(block);
            }
        }
        for block in released {
            self.release(block);
        }
        given_back >= needed
    }

    /// Waits for all pending blocks and gives back all memory that is not in use.
    fn release_cached(&mut self) {
        while let Some(&block) = self.pending.last() {
            self.end_pending(block);
        }
        for pool in 0..2 {
            let free = self.pools[pool].streams.iter().flat_map(|of| of.free.iter());
            let (fixed, growing): (Vec<u32>, Vec<u32>) = free
                .map(|(_, block)| block)
                .partition(|&block| self.blocks[block as usize].growing == FIXED);
            for block in fixed {
                if !self.blocks[block as usize].is_split() {
                    self.release(block);
                }
            }
            for block in growing {
                self.unmap(block);
            }
        }
    }

    /// Gives a whole free segment back to the driver.
    fn release(&mut self, block: u32) {
        let Block { address, bytes, stream, .. } = self.blocks[block as usize];
        self.remove_free(block);
        self.addresses.give_back(address, bytes);
        self.books.figures.segments -= 1;
        self.gave_back(bytes);
        self.event(false, bytes, stream, address);
        self.discard(block);
    }

    fn end_pending(&mut self, block: u32) {
        let index = self.blocks[block as usize].pending as usize;
        self.pending.swap_remove(index);
        if let Some(&moved) = self.pending.get(index) {
            self.blocks[moved as usize].pending = index as u32;
        }
        self.free_block(block);
    }

    fn live_block(&self, ticket: Ticket, state: State) -> Option<u32> {
        let block = self.blocks.get(ticket.slot as usize)?;
        (block.generation == ticket.generation && block.state == state).then_some(ticket.slot)
    }

    fn new_block(&mut self, address: u64, bytes: u64, stream: u64, pool: u32) -> u32 {
        let mut block = Block {
            address,
            bytes,
            requested: 0,
            stream,
            previous: NONE,
            next: NONE,
            pool,
            growing: FIXED,
            generation: 0,
            pending: 0,
            searches_before: 0,
            state: State::Free,
        };
        match self.spare.pop() {
            Some(slot) => {
                block.generation = self.blocks[slot as usize].generation;
                self.blocks[slot as usize] = block;
                slot
            }
            None => {
                self.blocks.push(block);
                (self.blocks.len() - 1) as u32
            }
        }
    }

    fn discard(&mut self, block: u32) {
        self.blocks[block as usize].state = State::Spare;
        self.spare.push(block);
    }

    /// Puts a block between two neighbours, of which either may be missing.
    fn link(&mut self, before: u32, block: u32, after: u32) {
        self.join(before, block);
        self.join(block, after);
    }

    fn join(&mut self, before: u32, after: u32) {
        if let Some(block) = self.blocks.get_mut(before as usize) {
            block.next = after;
        }
        if let Some(block) = self.blocks.get_mut(after as usize) {
            block.previous = before;
        }
    }

    fn took(&mut self, bytes: u64) {
        let figures = &mut self.books.figures;
        figures.reserved += bytes;
        figures.peak_reserved = figures.peak_reserved.max(figures.reserved);
    }

    fn gave_back(&mut self, bytes: u64) {
        self.books.figures.reserved -= bytes;
    }

    fn event(&mut self, is_taken: bool, bytes: u64, stream: u64, address: u64) {
        self.books.figures.driver_calls += 1;
        self.books.events.push(DriverEvent { is_taken, bytes, stream, address });
    }
}

impl Block {
    fn is_split(&self) -> bool {
        self.previous != NONE || self.next != NONE
    }
}

impl Model for Torch {
    fn name(&self) -> String {
        match self.settings.to_string() {
            settings if settings.is_empty() => "torch".to_owned(),
            settings => format!("torch:{settings}"),
        }
    }

    fn empty_cache(&mut self) {
        self.release_cached();
    }

    fn has_room(&self, bytes: u64) -> bool {
        let after = self.books.figures.reserved.saturating_add(bytes);
        after <= self.limit() && !self.collects_garbage()
    }

    fn allocate(&mut self, request: Request) -> Result<Ticket, Box<Refusal>> {
        if request.bytes == 0 {
            // PyTorch gives such tensors no memory.
            return Ok(Ticket::NONE);
        }
        let bytes = self.settings.rounded(request.bytes);
        let pool = self.pool_of(bytes, request.pool);
        let within = request.bytes <= LARGEST_REQUEST;
        let wanted = Wanted {
            bytes,
            segment_bytes: if within { self.segment_bytes(bytes) } else { bytes },
            pool,
            stream: request.stream,
        };
        match within.then(|| self.serve(wanted)).flatten() {
            Some(block) => {
                let splits = self.should_split(block, wanted);
                Ok(self.hand_out(block, wanted, request.bytes, splits))
            }
            None => {
                self.books.figures.failures += 1;
                let of = self.pools[pool as usize].of(request.stream);
                let largest = of.and_then(|of| of.free.largest());
                let pending = self.pending.iter().map(|&block| self.blocks[block as usize].bytes);
                Err(Box::new(Refusal {
                    request,
                    needed: wanted.segment_bytes,
                    allowed: self.limit(),
                    largest_free: largest.unwrap_or(0),
                    pending: pending.sum(),
                    figures: self.books.figures,
                }))
            }
        }
    }

    fn free(&mut self, ticket: Ticket, _stream: u64) {
        let Some(block) = self.live_block(ticket, State::Allocated) else { return };
        let index = self.pending.len() as u32;
        let this = &mut self.blocks[block as usize];
        this.state = State::Pending;
        this.pending = index;
        self.books.figures.allocated -= this.bytes;
        self.books.figures.requested = self.books.figures.requested.saturating_sub(this.requested);
        self.pending.push(block);
    }

    fn complete(&mut self, ticket: Ticket) {
        if let Some(block) = self.live_block(ticket, State::Pending) {
            self.end_pending(block);
        }
    }

    fn books(&self) -> &Books {
        &self.books
    }
}

/// PyTorch computes parts in floating point and cuts what is beyond the point.
fn part(bytes: u64, fraction: f64) -> u64 {
    (bytes as f64 * fraction) as u64
}
