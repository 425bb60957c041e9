//! What one thread keeps of one stream's blocks.

use std::sync::{Arc, Mutex, PoisonError};

use gpuheap_driver::CUstream;

use super::barrier;
use super::counts::Counts;
use super::gate::Gate;
use super::local;
use super::slots::{Kept, LARGEST, Slots};
use super::sync::Owned;
use crate::fork;
use crate::heap::Inner;
use crate::heap::ledger::Ledger;
use crate::heap::order::StreamRef;
use crate::heap::store::Lease;
use crate::pool::{KeptByThreads, Rounding};

/// The blocks that a thread freed on a stream, for its next requests on that stream.
///
/// They need no fence among themselves: the stream runs in order. Each gets its ticket when it leaves
/// for the pool.
///
/// A cache is never destroyed, so that a block can point at it without a count that all threads would
/// write. It is its thread's while that runs, and its heap's until no block of the heap is left; then
/// it is used again.
#[repr(align(128))]
pub(crate) struct ThreadCache {
    gate: Gate,
    /// The only thread that passes the gate; zero where that one ended.
    thread: Owned,
    /// The driver's id of its stream.
    stream_id: Owned,
    /// That stream as the heap knows it.
    slot: Owned,
    raw: Owned,
    /// The count of forks when it was opened.
    forks: Owned,
    rounding: Owned,
    /// Whether a request is served by a block and nothing else.
    is_plain: Owned,
    /// Up to which size it keeps several of each size, and how many larger ones.
    small: Owned,
    most_large: Owned,
    /// How many larger ones there are.
    large: Owned,
    /// Bytes that may be kept, and that are.
    most: Owned,
    held: Owned,
    /// Its stream ended, or its thread: [`CLOSED`], or [`SPENT`]. With the store's lock held.
    closed: Owned,
    counts: Counts,
    slots: Slots,
    heap: Mutex<Option<Arc<Inner>>>,
}

const OPEN: u64 = 0;
const CLOSED: u64 = 1;
/// Blocks that can never be given back point at it: it is not to be used again.
const SPENT: u64 = 2;

/// What a cache is opened for.
pub(super) struct Opening<'a> {
    pub(super) heap: &'a Arc<Inner>,
    pub(super) stream: StreamRef,
    pub(super) stream_id: u64,
    pub(super) kept: KeptByThreads,
    pub(super) small: u64,
    pub(super) is_plain: bool,
    pub(super) most: u64,
}

/// A block may be this part of a request larger than it, so that programs whose sizes vary a little
/// hit: an eighth up to 64 KiB, a 32nd above.
#[inline]
fn largest_for(bytes: u64) -> u64 {
    bytes + if bytes <= 64 << 10 { bytes / 8 } else { bytes / 32 }
}

/// For the thread whose cache it is.
impl ThreadCache {
    /// A block for a request of `bytes`.
    #[inline]
    pub(crate) fn take(&self, bytes: u64) -> Option<Lease> {
        if bytes == 0 || bytes > LARGEST || self.is_forked() {
            return None;
        }
        if !self.gate.enter() {
            return None;
        }
        let rounded = Rounding::from_number(self.rounding.get()).round(bytes);
        let taken = self.slots.take(rounded, largest_for(rounded));
        if let Some(block) = &taken {
            self.went(block.bytes);
            self.counts.allocated(bytes, block.bytes);
        }
        self.gate.leave();
        let Kept { key, address, bytes: block_bytes } = taken?;
        let (stream, stream_id) = (self.stream(), self.stream_id.get());
        Some(Lease { stream, stream_id, key: Some(key), address, bytes, block_bytes, track: None })
    }

    /// Keeps what is freed on its stream, if there is room for it; false also on other threads.
    #[inline]
    pub(crate) fn keep(&self, lease: &Lease) -> bool {
        let Lease { stream_id, key, address, bytes, block_bytes, .. } = *lease;
        let fits = self.is_mine()
            && self.stream_id.get() == stream_id
            && !self.is_forked()
            && block_bytes <= LARGEST;
        let Some(key) = key.filter(|_| fits) else { return false };
        if !self.gate.enter() {
            return false;
        }
        let is_large = self.is_large(block_bytes);
        let is_kept = (!is_large || self.large.get() < self.most_large.get())
            && self.held.get() + block_bytes <= self.most.get()
            && self.slots.put(Kept { key, address, bytes: block_bytes });
        if is_kept {
            self.held.add(block_bytes);
            self.large.add(u64::from(is_large));
            self.counts.freed(bytes, block_bytes);
        }
        self.gate.leave();
        is_kept
    }

    /// Whether its heap neither fills blocks with zeros nor tracks them.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.is_plain.get() != 0
    }

    /// Makes room for a block of `bytes`; false where it is never kept. With the store's lock held.
    pub(crate) fn make_room(&self, bytes: u64, mut each: impl FnMut(Kept)) -> bool {
        let is_large = self.is_large(bytes);
        let has_places = !is_large || self.most_large.get() > 0;
        if bytes == 0 || bytes > LARGEST || bytes > self.most.get() || !has_places {
            return false;
        }
        let mut take = |block: Kept| {
            self.went(block.bytes);
            each(block);
        };
        if !is_large {
            self.slots.drain_half(bytes, &mut take);
        } else if self.large.get() >= self.most_large.get() {
            self.slots.drain_above(self.small.get(), &mut take);
        }
        if self.held.get() + bytes > self.most.get() {
            self.slots.drain(take);
        }
        true
    }

    /// Takes out what is large. With the store's lock held.
    pub(crate) fn take_large(&self, mut each: impl FnMut(Kept)) {
        self.slots.drain_above(self.small.get(), |block| {
            self.went(block.bytes);
            each(block);
        });
    }

    /// Whether it keeps large blocks.
    pub(crate) fn has_large(&self) -> bool {
        self.large.get() > 0
    }

    /// Whether it keeps the last few alone of blocks of `bytes`.
    #[inline]
    pub(crate) fn is_large(&self, bytes: u64) -> bool {
        bytes > self.small.get()
    }

    #[inline]
    fn went(&self, bytes: u64) {
        self.held.sub(bytes);
        self.large.sub(u64::from(self.is_large(bytes)));
    }

    /// Carries over what the thread counted. With the store's lock held.
    pub(crate) fn carry(&self, ledger: &mut Ledger) {
        self.counts.carry(ledger);
    }
}

/// For any thread, with the lock of its store held.
impl ThreadCache {
    /// Takes everything out and carries over what was counted, while the owner waits outside.
    pub(crate) fn drain(&self, ledger: &mut Ledger, mut each: impl FnMut(Kept)) {
        self.gate.wait();
        self.held.set(0);
        self.large.set(0);
        self.slots.drain(&mut each);
        self.counts.carry(ledger);
    }

    /// Stops the owners of all of these; [`drain`](ThreadCache::drain) waits for each.
    pub(crate) fn stop_all<'a>(caches: impl Iterator<Item = &'a ThreadCache>) {
        let mut is_others = false;
        for cache in caches {
            is_others |= !cache.is_mine();
            cache.gate.stop();
        }
        if is_others {
            barrier::heavy();
        }
    }

    /// Lets the owner in again, unless its stream ended.
    pub(crate) fn resume(&self) {
        if self.closed.get() == OPEN {
            self.gate.open();
        }
    }

    /// Whether it is the running thread's.
    #[inline]
    pub(crate) fn is_mine(&self) -> bool {
        self.thread.get() == local::thread()
    }

    /// Bytes that it keeps, about: its owner may be at it.
    pub(crate) fn held(&self) -> u64 {
        self.held.get()
    }

    /// Has it keep at most so many bytes of what is freed from now on.
    pub(crate) fn set_most(&self, bytes: u64) {
        self.most.set(bytes);
    }

    /// Leaves it stopped, because its stream ended.
    pub(crate) fn close(&self) {
        self.closed.set(CLOSED);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.get() != OPEN
    }

    /// The driver's id of its stream.
    pub(crate) fn stream_id(&self) -> u64 {
        self.stream_id.get()
    }

    /// That stream as the heap knows it.
    #[inline]
    pub(crate) fn stream(&self) -> StreamRef {
        StreamRef::new(self.slot.get() as u32, CUstream(self.raw.get() as usize))
    }

    /// Has it keep several blocks of each size up to this one; while it is empty.
    pub(crate) fn set_small(&self, bytes: u64) {
        self.small.set(bytes);
    }

    /// The number of the thread that has it; zero for none.
    pub(crate) fn thread(&self) -> u64 {
        self.thread.get()
    }

    /// Whether the thread that had it ended, so that another one may have it.
    pub(super) fn is_orphan(&self) -> bool {
        self.thread.get() == 0
    }

    /// Has it be this thread's, of those that nobody has.
    pub(super) fn claim(&self) {
        self.thread.set(local::thread());
    }

    /// Leaves it to another thread of its heap. For its own thread.
    pub(super) fn orphan(&self) {
        self.thread.set(0);
    }

    /// Opens it for this thread.
    pub(super) fn open(&self, opening: &Opening<'_>) {
        self.claim();
        self.stream_id.set(opening.stream_id);
        self.slot.set(opening.stream.slot() as u64);
        self.raw.set(opening.stream.raw().0 as u64);
        self.forks.set(u64::from(fork::count()));
        let KeptByThreads { rounding, large, .. } = opening.kept;
        self.rounding.set(rounding.number());
        self.small.set(opening.small);
        self.most_large.set(large);
        self.is_plain.set(u64::from(opening.is_plain));
        self.most.set(opening.most);
        self.closed.set(OPEN);
        *self.lock_heap() = Some(opening.heap.clone());
        self.gate.open();
    }
}

impl ThreadCache {
    pub(super) fn new() -> ThreadCache {
        let zero = || Owned::new(0);
        ThreadCache {
            gate: Gate::new(),
            thread: zero(),
            stream_id: zero(),
            slot: zero(),
            raw: zero(),
            forks: zero(),
            rounding: zero(),
            is_plain: zero(),
            small: zero(),
            most_large: zero(),
            large: zero(),
            most: zero(),
            held: zero(),
            closed: Owned::new(CLOSED),
            counts: Counts::new(),
            slots: Slots::new(),
            heap: Mutex::new(None),
        }
    }

    /// Its heap; none once no block of that heap is left.
    pub(crate) fn heap(&self) -> Option<Arc<Inner>> {
        self.lock_heap().clone()
    }

    /// Works on its heap, which it does not let go of meanwhile.
    pub(super) fn with_heap<R>(&self, work: impl FnOnce(&Inner) -> R) -> Option<R> {
        self.lock_heap().as_deref().map(work)
    }

    /// Lets go of its heap.
    pub(super) fn leave_heap(&self) -> Option<Arc<Inner>> {
        self.lock_heap().take()
    }

    /// Has it never be used again.
    pub(super) fn spend(&self) {
        self.gate.stop();
        self.closed.set(SPENT);
    }

    /// Whether it may be opened for any heap.
    pub(super) fn is_free(&self) -> bool {
        // Not in a forked child, where another thread of the parent may have held the lock.
        self.closed.get() == CLOSED && !self.is_forked() && self.lock_heap().is_none()
    }

    /// Whether this process is a child of the one that opened it.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        self.forks.get() != u64::from(fork::count())
    }

    fn lock_heap(&self) -> std::sync::MutexGuard<'_, Option<Arc<Inner>>> {
        self.heap.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
