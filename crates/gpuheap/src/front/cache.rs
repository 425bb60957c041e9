//! What one thread keeps of one stream's blocks.

use super::counts::Counts;
use super::slots::{Kept, LARGEST, Slots};
use super::sync::{AtomicBool, AtomicU64, Ordering};
use crate::heap::order::StreamRef;

/// The blocks that a thread freed on a stream, for its next requests on that stream.
///
/// They need no fence among themselves: the stream runs in order. Each gets its ticket when it leaves
/// for the pool.
#[derive(Debug)]
pub(crate) struct Cache {
    /// The only thread that puts in.
    pub(crate) thread: u64,
    /// Its stream.
    pub(crate) stream: StreamRef,
    /// The driver's id of it.
    pub(crate) stream_id: u64,
    /// Nothing is put in any more: the stream ended.
    closed: AtomicBool,
    slots: Slots,
    pub(crate) counts: Counts,
    /// Bytes that may be kept.
    most: u64,
    /// Bytes ever put in less those that the owner took out. Written by the owner alone.
    entered: AtomicU64,
    /// Bytes that went to the pool. Written with the heap's lock held.
    left: AtomicU64,
}

/// A block may be this part of a request larger than it, so that programs whose sizes vary a little
/// hit: an eighth up to 64 KiB, a 32nd above.
fn largest_for(bytes: u64) -> u64 {
    bytes + if bytes <= 64 << 10 { bytes / 8 } else { bytes / 32 }
}

impl Cache {
    pub(crate) fn new(thread: u64, stream: StreamRef, stream_id: u64, most: u64) -> Cache {
        Cache {
            thread,
            stream,
            stream_id,
            closed: AtomicBool::new(false),
            slots: Slots::new(),
            counts: Counts::new(),
            most,
            entered: AtomicU64::new(0),
            left: AtomicU64::new(0),
        }
    }

    /// A block of at least `bytes`, the policy's rounding included. For the owner alone.
    pub(crate) fn take(&self, bytes: u64) -> Option<Kept> {
        if bytes > LARGEST {
            return None;
        }
        let block = self.slots.take(bytes, largest_for(bytes))?;
        let entered = self.entered.load(Ordering::Relaxed);
        self.entered.store(entered.wrapping_sub(block.bytes), Ordering::Relaxed);
        Some(block)
    }

    /// Keeps a block, if there is room for it. For the owner alone.
    pub(crate) fn put(&self, block: Kept) -> bool {
        let entered = self.entered.load(Ordering::Relaxed);
        let held = entered.wrapping_sub(self.left.load(Ordering::Relaxed));
        if block.bytes > LARGEST || held.saturating_add(block.bytes) > self.most {
            return false;
        }
        let is_kept = self.slots.put(block);
        if is_kept {
            self.entered.store(entered.wrapping_add(block.bytes), Ordering::Relaxed);
        }
        is_kept
    }

    /// Takes everything out. With the heap's lock held.
    pub(crate) fn drain(&self, mut each: impl FnMut(Kept)) {
        let mut left = self.left.load(Ordering::Relaxed);
        self.slots.drain(|block| {
            left = left.wrapping_add(block.bytes);
            each(block);
        });
        self.left.store(left, Ordering::Relaxed);
    }

    /// Makes room for blocks of `bytes`: of that size, else of all. With the heap's lock held.
    pub(crate) fn make_room(&self, bytes: u64, mut each: impl FnMut(Kept)) {
        let mut left = self.left.load(Ordering::Relaxed);
        let before = left;
        let mut take = |block: Kept| {
            left = left.wrapping_add(block.bytes);
            each(block);
        };
        if bytes <= LARGEST {
            self.slots.drain_half(bytes, &mut take);
        }
        let is_full = left == before;
        self.left.store(left, Ordering::Relaxed);
        if is_full {
            self.drain(each);
        }
    }

    /// Says that its stream ended.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }
}
