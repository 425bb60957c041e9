//! RMM's pool.

use std::collections::BTreeSet;

use super::{ALIGN, LEGACY, stream_key};
use crate::models::spans::{ByStream, Live, Span};
use crate::models::{Books, Model, Refusal, Request, SettingError, Ticket};

/// Address above all memory of the model's device.
const HIGHEST: u64 = 1 << 60;

/// RMM's `PoolMemoryResource` over `cudaMalloc`.
///
/// Each stream has its own free list: best fit with merging. If that list has no piece that is
/// large enough, the stream takes a piece from another list. If no list has such a piece, the
/// stream merges the other lists into its own. If that is not enough, the pool grows. The pool
/// never shrinks.
///
/// The model searches other lists in the order of their streams' first requests. RMM searches lists
/// in the order of event addresses, and takes the lower of two equal blocks. No trace has the
/// addresses of events or segments. So the figures may differ for programs with several streams or
/// many segments.
#[derive(Debug, Clone)]
pub struct Pool {
    books: Books,
    initial: u64,
    maximum: Option<u64>,
    live: Live<(u64, Span)>,
    lists: ByStream,
    /// Start of each allocation from the driver.
    heads: BTreeSet<u64>,
    end: u64,
}

impl Pool {
    /// Makes the pool of a device that has `device_memory` bytes for this program. RMM's Python
    /// default for `initial` is half of the free memory. Without `maximum`, the pool doubles as it
    /// grows.
    ///
    /// # Errors
    /// Returns an error if a size is not a multiple of 256, if `initial` is above `maximum`, or if
    /// the device has less than `initial`.
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
            lists: ByStream::default(),
            heads: BTreeSet::new(),
            end: ALIGN,
        };
        if initial > 0 {
            let Some(span) = pool.take_new(initial, LEGACY) else {
                return Err(SettingError::new(
                    format!("initial_pool_size is {initial}, more than the device has"),
                    "lower it",
                ));
            };
            pool.lists.entry(LEGACY).insert(span);
        }
        Ok(pool)
    }

    fn take_new(&mut self, bytes: u64, stream: u64) -> Option<Span> {
        // Later calls of `cudaMalloc` mostly return lower addresses (H200, driver 580).
        let place = HIGHEST.saturating_sub(self.end).saturating_sub(bytes);
        if !self.books.take(bytes, stream, place) {
            return None;
        }
        self.end = self.end.saturating_add(bytes);
        self.heads.insert(place);
        Some(Span { place, bytes, is_head: true })
    }

    fn take(&mut self, bytes: u64, stream: u64) -> Option<Span> {
        if let Some(span) = self.lists.entry(stream).take_best(bytes) {
            return Some(span);
        }
        let others = self.lists.0.iter_mut().filter(|(own, _)| *own != stream);
        for (_, other) in others {
            if let Some(span) = other.take_best(bytes) {
                return Some(span);
            }
        }
        for at in 0..self.lists.0.len() {
            let (own, spans) = &mut self.lists.0[at];
            if *own == stream {
                continue;
            }
            let other = std::mem::take(spans);
            let own = self.lists.entry(stream);
            other.iter().for_each(|span| own.insert(span));
            if let Some(span) = own.take_best(bytes) {
                return Some(span);
            }
        }
        let span = self.grow(bytes, stream)?;
        let own = self.lists.entry(stream);
        own.insert(span);
        own.take_best(bytes)
    }

    /// Takes memory of the size that RMM prefers. If the device refuses, halves the size, down to
    /// the size of the request.
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

    fn serve(&mut self, request: Request) -> Result<Ticket, Box<Refusal>> {
        let stream = stream_key(request.stream);
        let rounded = request.bytes.checked_next_multiple_of(ALIGN);
        let Some(span) = rounded.and_then(|bytes| self.take(bytes, stream)) else {
            let largest = self.lists.entry(stream).largest();
            return Err(self.books.refuse(request, rounded.unwrap_or(request.bytes), largest));
        };
        self.books.handed_out(request.bytes, span.bytes);
        Ok(self.live.add((request.bytes, span)))
    }

    fn free(&mut self, ticket: Ticket, stream: u64) {
        let Some((requested, span)) = self.live.take(ticket) else { return };
        self.books.freed(requested, span.bytes);
        let is_head = self.heads.contains(&span.place);
        self.lists.entry(stream_key(stream)).insert(Span { is_head, ..span });
    }

    fn books(&self) -> &Books {
        &self.books
    }
}
