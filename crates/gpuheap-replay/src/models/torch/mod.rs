//! Models PyTorch's own allocator for CUDA, `CUDACachingAllocator`.
//!
//! The model is exact to the byte for PyTorch 2.11, the release that recorded the traces.
//! [`Version`] lists the differences of other releases. The model covers:
//!
//! * rounding, segment sizes, and the pools of small and of large blocks
//! * best fit by stream, size and address, and splitting
//! * oversize blocks, garbage collection, and segments that grow in place
//! * blocks that wait for other streams, and private pools
//! * all steps that PyTorch takes before a request fails

mod block;
mod blocks;
mod free_blocks;
mod grow;
mod pool;
mod release;
mod search;
mod settings;
mod version;

pub use settings::Settings;
pub use version::Version;

use self::block::{Block, Growing, LARGEST_REQUEST, MIN_BLOCK, State, Wanted};
use self::pool::BlockPool;
use super::addresses::Addresses;
use super::{Books, Model, Refusal, Request, Ticket};

/// Model of PyTorch's allocator on one device.
#[derive(Debug, Clone)]
pub struct Torch {
    settings: Settings,
    /// Bytes that the memory fraction allows; `None` if no fraction is set.
    allowed: Option<u64>,
    blocks: Vec<Block>,
    spare: Vec<u32>,
    /// Pools of large and of small blocks: two default pools, then two for each private pool.
    pools: Vec<BlockPool>,
    private_pools: Vec<u32>,
    growing: Vec<Growing>,
    pending: Vec<u32>,
    addresses: Addresses,
    books: Books,
}

impl Torch {
    /// Makes the allocator of a device with `device_memory` bytes in all. The memory fraction is
    /// relative to `device_memory`.
    pub fn new(settings: Settings, device_memory: u64) -> Self {
        let books = Books::new(device_memory);
        let limits = |fraction: &f64| *fraction < 1.0 || settings.version.limits_to_whole_device();
        let fraction = settings.memory_fraction().filter(limits);
        let allowed = fraction.map(|fraction| fraction_of(books.allowed, fraction));
        Self {
            settings,
            allowed,
            blocks: Vec::new(),
            spare: Vec::new(),
            pools: vec![BlockPool::new(false), BlockPool::new(true)],
            private_pools: Vec::new(),
            growing: Vec::new(),
            pending: Vec::new(),
            addresses: Addresses::default(),
            books,
        }
    }

    /// Limits the allocator to `bytes`: the device's memory without the memory of CUDA and other
    /// programs. The memory fraction remains relative to the whole device.
    pub fn set_capacity(&mut self, bytes: u64) {
        self.books.set_allowed(bytes);
    }

    /// Sets the addresses of segments that do not grow in place. `recorded` yields the recorded
    /// address and size of each segment, in order. If a segment differs in size from the recorded
    /// segment, or if a recorded range is invalid, the model continues with its own addresses.
    pub fn follow_addresses(&mut self, recorded: impl IntoIterator<Item = (u64, u64)>) {
        self.addresses.follow(recorded);
    }

    /// Adds a segment that was taken before the recording began. Adds no driver event. Returns
    /// `false` and adds nothing if the segment does not fit, or if segments grow in place.
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
        self.count_taken(bytes);
        true
    }

    /// Serves `request` with the block at `address`, as [`Model::allocate`] would if that block
    /// were the best. Returns `None` if no free block contains the needed range.
    pub fn allocate_at(&mut self, request: Request, address: u64) -> Option<Ticket> {
        let bytes = self.settings.rounded(request.bytes);
        let end = address.checked_add(bytes)?;
        let (pool, found) = self.pools.iter().enumerate().find_map(|(pool, of)| {
            let free = &of.stream(request.stream)?.free;
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
        let block = self.live_block(ticket, State::Allocated)?;
        Some(self.blocks[block as usize].address)
    }

    /// Returns the settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    fn limit(&self) -> u64 {
        self.allowed.unwrap_or(u64::MAX).min(self.books.allowed)
    }

    fn count_taken(&mut self, bytes: u64) {
        let figures = &mut self.books.figures;
        figures.reserved += bytes;
        figures.peak_reserved = figures.peak_reserved.max(figures.reserved);
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

    fn serve(&mut self, request: Request) -> Result<Ticket, Box<Refusal>> {
        let bytes = self.settings.rounded(request.bytes);
        let pool = self.pool_of(bytes, request.pool);
        let within = request.bytes <= LARGEST_REQUEST;
        let wanted = Wanted {
            bytes,
            segment_bytes: if within { self.segment_bytes(bytes) } else { bytes },
            pool,
            stream: request.stream,
        };
        match within.then(|| self.find_block(wanted)).flatten() {
            Some(block) => {
                let splits = self.should_split(block, wanted);
                Ok(self.hand_out(block, wanted, request.bytes, splits))
            }
            None => {
                self.books.figures.failures += 1;
                let of = self.pools[pool as usize].stream(request.stream);
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

/// Returns `fraction` of `bytes`. PyTorch computes this product in floating point and truncates it.
fn fraction_of(bytes: u64, fraction: f64) -> u64 {
    (bytes as f64 * fraction) as u64
}
