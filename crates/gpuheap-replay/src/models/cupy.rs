//! Models CuPy's own memory pool.
//!
//! Requests are rounded to 512 bytes. Each stream has an arena, with best fit and merging of free
//! neighbours. If no piece fits, `cudaMalloc` takes exactly the rounded size. Memory of one stream
//! never serves another stream.

use super::spans::{ByStream, Live, LiveSpan, Span};
use super::{Books, Model, Refusal, Request, SettingError, Ticket};

/// Granularity of requests, in bytes.
const ALIGN: u64 = 512;

/// CuPy's memory pool on one device.
#[derive(Debug, Clone)]
pub struct Cupy {
    books: Books,
    limit: Option<u64>,
    live: Live<LiveSpan>,
    /// Free pieces of each stream. Pieces of different `cudaMalloc` allocations never merge.
    arenas: ByStream,
    /// Bytes of each `cudaMalloc`, keyed by place.
    taken: rustc_hash::FxHashMap<u64, u64>,
    end: u64,
}

impl Cupy {
    /// Makes the pool of a device that has `device_memory` bytes for this program. `limit` is the
    /// value for `set_limit(size=...)` or `CUPY_GPU_MEMORY_LIMIT`.
    ///
    /// # Errors
    /// Returns an error if the limit is zero. CuPy treats zero as no limit.
    pub fn new(device_memory: u64, limit: Option<u64>) -> Result<Self, SettingError> {
        if limit == Some(0) {
            return Err(SettingError::new(
                "CuPy's limit is 0 bytes",
                "CuPy takes 0 for no limit: leave it out, or give the bytes",
            ));
        }
        let allowed = device_memory.min(limit.unwrap_or(u64::MAX));
        Ok(Self {
            books: Books::new(allowed),
            limit,
            live: Live::default(),
            arenas: ByStream::default(),
            taken: rustc_hash::FxHashMap::default(),
            end: ALIGN,
        })
    }

    fn take(&mut self, bytes: u64, stream: u64) -> Option<Span> {
        if let Some(span) = self.arenas.entry(stream).take_best(bytes) {
            return Some(span);
        }
        let place = self.end;
        if !self.books.take(bytes, stream, place) {
            self.free_all_blocks();
            self.books.figures.retries += 1;
            if !self.books.take(bytes, stream, place) {
                return None;
            }
        }
        self.taken.insert(place, bytes);
        // Two `cudaMalloc` allocations may have adjacent addresses. With `is_head`, a span never
        // merges with the span before it, so the two allocations stay separate.
        self.end = self.end.saturating_add(bytes);
        Some(Span { place, bytes, is_head: true })
    }

    /// Gives back each `cudaMalloc` without a live block, on all streams, as CuPy's method of this
    /// name does.
    pub fn free_all_blocks(&mut self) {
        let Self { arenas, taken, books, .. } = self;
        for (stream, arena) in &mut arenas.0 {
            let whole: Vec<Span> =
                arena.iter().filter(|span| taken.get(&span.place) == Some(&span.bytes)).collect();
            for span in whole {
                arena.remove(span.place);
                taken.remove(&span.place);
                books.give_back(span.bytes, *stream, span.place);
            }
        }
    }
}

impl Model for Cupy {
    fn empty_cache(&mut self) {
        self.free_all_blocks();
    }

    fn name(&self) -> String {
        match self.limit {
            Some(limit) => format!("cupy:limit:{limit}"),
            None => "cupy".to_owned(),
        }
    }

    fn serve(&mut self, request: Request) -> Result<Ticket, Box<Refusal>> {
        let Request { bytes, stream, .. } = request;
        let rounded = bytes.checked_next_multiple_of(ALIGN);
        let Some(span) = rounded.and_then(|rounded| self.take(rounded, stream)) else {
            let largest = self.arenas.entry(stream).largest();
            return Err(self.books.refuse(request, rounded.unwrap_or(bytes), largest));
        };
        self.books.handed_out(bytes, span.bytes);
        Ok(self.live.add(LiveSpan { requested: bytes, span, stream }))
    }

    fn free(&mut self, ticket: Ticket, _stream: u64) {
        let Some(LiveSpan { requested, span, stream }) = self.live.take(ticket) else { return };
        self.books.freed(requested, span.bytes);
        self.arenas.entry(stream).insert(span);
    }

    fn books(&self) -> &Books {
        &self.books
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(bytes: u64, stream: u64) -> Request {
        Request { bytes, stream, pool: 0 }
    }

    #[test]
    fn freed_memory_serves_its_stream_only() {
        let mut pool = Cupy::new(1 << 30, None).unwrap();
        let ticket = pool.allocate(request(1000, 0)).unwrap();
        assert_eq!(pool.figures().reserved, 1024);
        pool.free(ticket, 0);
        pool.allocate(request(1000, 7)).unwrap();
        assert_eq!(pool.figures().reserved, 2048);
        pool.allocate(request(600, 0)).unwrap();
        assert_eq!(pool.figures().reserved, 2048);
    }

    #[test]
    fn blocks_split_and_merge_within_segments() {
        let mut pool = Cupy::new(1 << 30, None).unwrap();
        let whole = pool.allocate(request(4096, 0)).unwrap();
        pool.free(whole, 0);
        let parts: Vec<_> = (0..8).map(|_| pool.allocate(request(512, 0)).unwrap()).collect();
        assert_eq!(pool.figures().reserved, 4096);
        parts.into_iter().for_each(|part| pool.free(part, 0));
        pool.allocate(request(4096, 0)).unwrap();
        assert_eq!(pool.figures().reserved, 4096);
    }

    #[test]
    fn cached_memory_returns_before_failure() {
        let mut pool = Cupy::new(1 << 30, Some(10_240)).unwrap();
        let first = pool.allocate(request(5000, 0)).unwrap();
        pool.free(first, 0);
        pool.allocate(request(10_000, 3)).unwrap();
        assert_eq!((pool.figures().reserved, pool.figures().retries), (10_240, 1));
        let refusal = pool.allocate(request(1, 3)).unwrap_err();
        assert_eq!((refusal.needed, refusal.allowed), (512, 10_240));
        assert!(Cupy::new(1 << 30, Some(0)).is_err());
    }
}
