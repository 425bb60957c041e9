//! Models the CUDA driver itself: `cudaMalloc`, and its stream-ordered pool as RMM configures it.
//!
//! The driver's source is closed. The rules were measured on an H200 (driver 580), where
//! `cuMemGetInfo` shows how much each call takes. In random programs (test `pools`), the modelled
//! peak of `cuda` differs from the measured peak by 0.7 % at most. The peaks of `rmm:async` differ
//! by 5.4 % with one stream and by 10.2 % with two streams.

use super::spans::{FreeSpans, Live, LiveSpan, Span};
use super::{Books, Model, Refusal, Request, Ticket};

/// Granularity at which the driver takes memory from the device, in bytes.
const GRANULE: u64 = 2 << 20;
/// Largest allocation that shares a granule with other allocations, in bytes.
const SMALL: u64 = 1 << 20;
/// Granularity of allocations, in bytes.
const ALIGN: u64 = 512;
/// Granularity at which a stream-ordered pool takes memory from the device, in bytes.
const POOL_CHUNK: u64 = 32 << 20;

/// RMM's `CudaMemoryResource`. Each request calls `cudaMalloc`, and each free calls `cudaFree`.
#[derive(Debug, Clone)]
pub struct Cuda {
    books: Books,
    live: Live<LiveSpan>,
    /// Free pieces of the granules that small allocations share. The piece at the start of a
    /// granule never merges with the piece before it.
    small: FreeSpans,
    next_granule: u64,
}

impl Cuda {
    /// Makes the driver of a device that has `device_memory` bytes for this program.
    pub fn new(device_memory: u64) -> Self {
        Self {
            books: Books::new(device_memory),
            live: Live::default(),
            small: FreeSpans::default(),
            next_granule: GRANULE,
        }
    }

    fn take(&mut self, bytes: u64, stream: u64) -> Option<Span> {
        let is_small = bytes <= SMALL;
        let bytes = bytes.checked_next_multiple_of(if is_small { ALIGN } else { GRANULE })?;
        if is_small && let Some(span) = self.small.take_best(bytes) {
            return Some(span);
        }
        let taken = bytes.checked_next_multiple_of(GRANULE)?;
        let place = self.next_granule;
        if !self.books.take(taken, stream, place) {
            return None;
        }
        self.next_granule = self.next_granule.saturating_add(taken);
        let span = Span { place, bytes: taken, is_head: true };
        if is_small {
            self.small.insert(span);
            return self.small.take_best(bytes);
        }
        Some(span)
    }
}

impl Model for Cuda {
    fn name(&self) -> String {
        "cuda".to_owned()
    }

    fn serve(&mut self, request: Request) -> Result<Ticket, Box<Refusal>> {
        let Some(span) = self.take(request.bytes, request.stream) else {
            let largest = self.small.largest();
            return Err(self.books.refuse(request, request.bytes, largest));
        };
        self.books.handed_out(request.bytes, span.bytes);
        let Request { bytes, stream, .. } = request;
        Ok(self.live.add(LiveSpan { requested: bytes, span, stream }))
    }

    fn free(&mut self, ticket: Ticket, _stream: u64) {
        let Some(LiveSpan { requested, span, stream }) = self.live.take(ticket) else { return };
        self.books.freed(requested, span.bytes);
        if span.bytes > SMALL {
            self.books.give_back(span.bytes, stream, span.place);
            return;
        }
        self.small.insert(span);
        let granule = span.place / GRANULE * GRANULE;
        if self.small.get(granule) == Some(GRANULE) {
            self.small.remove(granule);
            self.books.give_back(GRANULE, stream, granule);
        }
    }

    fn books(&self) -> &Books {
        &self.books
    }
}

/// RMM's `CudaAsyncMemoryResource`, a stream-ordered pool of the driver. It keeps all memory.
///
/// Frees are completed immediately. Above its `release_threshold`, the driver's pool gives memory
/// back when the host waits for a stream. No trace has such waits, so this model keeps everything.
#[derive(Debug, Clone, Default)]
pub struct Async {
    name: &'static str,
    books: Books,
    live: Live<(u64, Span)>,
    free: FreeSpans,
    end: u64,
}

impl Async {
    /// Makes the pool of a device that has `device_memory` bytes for this program. `name` is the
    /// text that selects this pool, `cuda:async` or `rmm:async`.
    pub fn new(device_memory: u64, name: &'static str) -> Self {
        Self { name, books: Books::new(device_memory), ..Self::default() }
    }

    fn take(&mut self, bytes: u64, stream: u64) -> Option<Span> {
        let bytes = bytes.checked_next_multiple_of(ALIGN)?;
        if let Some(span) = self.free.take_best(bytes) {
            return Some(span);
        }
        // If the pool ends with a free piece, takes only the missing bytes, right after that piece.
        let free_end = match self.free.last() {
            Some((place, its)) if place + its == self.end => its,
            _ => 0,
        };
        let more = (bytes - free_end).checked_next_multiple_of(POOL_CHUNK)?;
        if !self.books.take(more, stream, self.end) {
            return None;
        }
        self.free.insert(Span { place: self.end, bytes: more, is_head: false });
        self.end += more;
        self.free.take_best(bytes)
    }
}

impl Model for Async {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn serve(&mut self, request: Request) -> Result<Ticket, Box<Refusal>> {
        let Some(span) = self.take(request.bytes, request.stream) else {
            let largest = self.free.largest();
            return Err(self.books.refuse(request, request.bytes, largest));
        };
        self.books.handed_out(request.bytes, span.bytes);
        Ok(self.live.add((request.bytes, span)))
    }

    fn free(&mut self, ticket: Ticket, _stream: u64) {
        let Some((requested, span)) = self.live.take(ticket) else { return };
        self.books.freed(requested, span.bytes);
        self.free.insert(span);
    }

    fn books(&self) -> &Books {
        &self.books
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(bytes: u64) -> Request {
        Request { bytes, stream: 0, pool: 0 }
    }

    #[test]
    fn small_allocations_share_a_granule() {
        let mut cuda = Cuda::new(1 << 30);
        let tickets: Vec<_> = (0..8).map(|_| cuda.allocate(request(100_000)).unwrap()).collect();
        assert_eq!(cuda.figures().reserved, GRANULE);
        let large = cuda.allocate(request(SMALL + 1)).unwrap();
        assert_eq!(cuda.figures().reserved, 2 * GRANULE);
        tickets.into_iter().for_each(|ticket| cuda.free(ticket, 0));
        assert_eq!(cuda.figures().reserved, GRANULE, "an empty granule is given back");
        cuda.free(large, 0);
        cuda.free(large, 0);
        assert_eq!((cuda.figures().reserved, cuda.figures().allocated), (0, 0));
    }

    #[test]
    fn async_pool_grows_by_32_mib() {
        let mut pool = Async::new(1 << 30, "cuda:async");
        let first = pool.allocate(request(20 << 20)).unwrap();
        assert_eq!(pool.figures().reserved, POOL_CHUNK);
        let second = pool.allocate(request(40 << 20)).unwrap();
        assert_eq!(pool.figures().reserved, 2 * POOL_CHUNK);
        pool.free(first, 0);
        pool.free(second, 0);
        pool.allocate(request(60 << 20)).unwrap();
        assert_eq!(pool.figures().reserved, 2 * POOL_CHUNK, "chunks merge");
        assert!(pool.allocate(request(u64::MAX)).is_err());
    }
}
