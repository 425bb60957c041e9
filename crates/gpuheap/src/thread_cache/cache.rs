//! The cache of one thread for one stream's blocks.

use std::any::Any;
use std::ptr;
use std::sync::Arc;

use gpuheap_pool::{CacheRules, Rounding, RunningStats, StreamHandle, StreamRef};

use super::counts::Counts;
use super::local;
use super::remote_frees::{PLACES, RemoteFrees};
use super::slots::{CacheSlot, CacheSlots, CachedBlock, LARGEST, NEVER, Note};
use crate::fork;
use crate::lease::Lease;
use crate::sync::{AtomicPtr, Lock, Ordering, OwnedU64, Word, this_thread};

/// Blocks that a thread freed on a stream and keeps for its next requests on that stream.
///
/// The blocks need no fence between them, because the stream runs in order. A block gets its ticket
/// (the number of its free) only when it moves to the pool.
///
/// A cache is never destroyed. A block can therefore point at its cache without a reference count
/// that all threads would write. The cache belongs to a thread while the thread runs, and to a heap
/// until the heap has no block left. After that, the cache is reused.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct ThreadCache {
    /// Lock of the cache, a single atomic word. The cache's thread takes it for each use. Another
    /// thread closes it to keep that thread out.
    word: Word,
    /// Identifier of the thread that owns the cache and may lock `word`; zero after that thread
    /// ended.
    thread: OwnedU64,
    /// Identifier of the cache's store.
    store: OwnedU64,
    /// Identifier of the cache's context.
    context: OwnedU64,
    /// The last moment that `note_moment` recorded. A moment is a count of the context's waits and
    /// events. All marked blocks were freed before the recorded moment.
    moment: OwnedU64,
    /// The driver's id of the cache's stream.
    stream_id: OwnedU64,
    /// The cache's stream, as the heap identifies it: by its slot and the driver's handle.
    slot: OwnedU64,
    raw: OwnedU64,
    /// Number of forks before the cache was opened.
    forks: OwnedU64,
    rounding: OwnedU64,
    /// `true` if the heap neither fills nor tracks blocks.
    is_plain: OwnedU64,
    /// Largest size of which the cache keeps several blocks. Of the larger sizes, it keeps only the
    /// last freed block, and none if `caches_large` is zero. Another thread may change `small`, but
    /// must first close `word`, the cache's lock, and empty the cache.
    pub(crate) small: OwnedU64,
    caches_large: OwnedU64,
    /// Maximum number of bytes in the cache. `cached` is the number of bytes in it now.
    pub(crate) limit: OwnedU64,
    cached: OwnedU64,
    /// [`CLOSED`] or [`SPENT`] once the cache's stream or thread ended. Written with the store's
    /// lock held.
    closed: OwnedU64,
    /// Counters of another cache of the same thread and store, if this cache shares them. Null if
    /// this cache uses `own`.
    shared: AtomicPtr<Counts>,
    own: Counts,
    slots: CacheSlots,
    large: CacheSlot,
    /// Blocks that this cache served and other threads freed. `unwanted` is the number of these
    /// blocks for which the owning thread found no slot.
    remote_frees: RemoteFrees,
    unwanted: OwnedU64,
    /// Index in another cache's `remote_frees` at which the next search for room begins.
    next_place: OwnedU64,
    pub(super) heap: Lock<Option<Arc<dyn CacheOwner>>>,
}

/// Interface through which a cache calls its heap.
pub(crate) trait CacheOwner: Any + Send + Sync {
    /// Closes and flushes a cache of this thread, and abandons it to the heap's other threads.
    /// Returns `false` if the heap does not have the cache.
    fn close_cache(&self, cache: &'static ThreadCache) -> bool;
}

/// State of a new cache, and of a cache whose stream or thread ended.
const CLOSED: u64 = 0;
const OPEN: u64 = 1;
/// State of a cache that is never reused, because blocks from before a reset still point at it.
const SPENT: u64 = 2;

/// Properties with which a cache is opened.
pub(crate) struct Opening {
    pub(crate) heap: Arc<dyn CacheOwner>,
    /// Identifier of the heap's context.
    pub(crate) context: u64,
    pub(crate) store: u64,
    pub(crate) stream: StreamRef,
    pub(crate) stream_id: u64,
    pub(crate) rules: CacheRules,
    pub(crate) small: u64,
    pub(crate) is_plain: bool,
    pub(crate) limit: u64,
}

/// Returns the size of the largest cached block that may serve a request of `bytes`. The block may
/// be an eighth larger up to 64 KiB, and a 32nd larger above. Programs whose sizes vary a little
/// then still hit the cache.
#[inline]
fn largest_for(bytes: u64) -> u64 {
    bytes + if bytes <= 64 << 10 { bytes / 8 } else { bytes / 32 }
}

/// Methods for the thread that owns the cache.
impl ThreadCache {
    #[inline(always)]
    pub(crate) fn take(&self, bytes: u64) -> Option<Lease> {
        if bytes == 0 || bytes > LARGEST || self.is_forked() {
            return None;
        }
        let rounded = Rounding::from_number(self.rounding.get()).round(bytes);
        let slot = self.find(rounded, largest_for(rounded))?;
        let inside = self.word.enter()?;
        // Another thread may have taken the block, but no other thread puts a block in.
        let CachedBlock { key, address, bytes: block_bytes, .. } = slot.take()?;
        self.cached.sub(block_bytes);
        self.counts().allocated(bytes, block_bytes);
        drop(inside);
        let (stream, stream_id) = (self.stream(), self.stream_id.get());
        Some(Lease { stream, stream_id, key: Some(key), address, bytes, block_bytes, track: None })
    }

    /// Returns the slot with the smallest block that has `bytes` to `most` bytes. Does not take the
    /// cache's lock, so that a miss costs no atomic exchange.
    #[inline]
    fn find(&self, bytes: u64, most: u64) -> Option<&CacheSlot> {
        if self.is_large(bytes) {
            return Some(&self.large).filter(|slot| (bytes..=most).contains(&slot.bytes()));
        }
        let found = self.slots.find(bytes, most);
        if found.is_some() || !self.remote_frees.is_filled() {
            return found;
        }
        self.take_remote_frees();
        self.slots.find(bytes, most)
    }

    /// Keeps a block that this cache served and that is freed on the cache's stream. If another
    /// thread frees the block, that thread's cache or this cache's [`RemoteFrees`] keep it. Returns
    /// `false` if neither has room.
    #[inline]
    pub(crate) fn keep(&self, lease: &Lease) -> bool {
        if self.is_mine() { self.keep_own(lease) } else { self.keep_others(lease) }
    }

    #[inline(never)]
    fn keep_others(&self, lease: &Lease) -> bool {
        let own = local::find(self.store.get(), lease.stream_id);
        own.is_some_and(|own| own.keep_own(lease) || own.put_back(self, lease))
    }

    #[inline]
    fn keep_own(&self, lease: &Lease) -> bool {
        let Lease { stream_id, key, address, bytes, block_bytes, .. } = *lease;
        let fits = self.stream_id.get() == stream_id && !self.is_forked() && block_bytes <= LARGEST;
        let Some(key) = key.filter(|_| fits) else { return false };
        // Searches for a slot before taking the lock: a refused block costs no atomic exchange.
        let is_large = self.is_large(block_bytes);
        let slot = match is_large {
            true => {
                Some(&self.large).filter(|slot| self.caches_large.get() != 0 && slot.is_empty())
            }
            false => self.slots.room(block_bytes),
        };
        let Some(slot) = slot else { return false };
        let Some(_inside) = self.word.enter() else { return false };
        // Compares with the lock held. A thread that lowers the limit stores the new limit, and
        // then waits for this lock. It empties the cache afterwards, so it also removes this block.
        if self.cached.get() + block_bytes > self.limit.get() {
            return false;
        }
        slot.put(CachedBlock { key, address, bytes: block_bytes, before: NEVER });
        if !is_large {
            self.slots.note_filled(block_bytes);
        }
        self.cached.add(block_bytes);
        self.counts().freed(bytes, block_bytes);
        true
    }

    /// Puts a block into the remote frees of `home`, another thread's cache that served the block.
    /// The owner of `home` counted the allocation, so it must also count the free: it does so when
    /// it takes the block out. If the calling thread counted the free, the owner's live bytes and
    /// peak would only grow.
    #[inline]
    fn put_back(&self, home: &ThreadCache, lease: &Lease) -> bool {
        let Lease { stream_id, key, address, bytes, block_bytes, .. } = *lease;
        let Some(key) = key.filter(|_| !self.is_forked()) else { return false };
        // This thread takes only the lock of its own cache, and not the lock of `home`. That
        // suffices, because a thread that closes `home` first waits until the locks of all caches
        // are released.
        let Some(_inside) = self.word.enter() else { return false };
        // Accepts a block only if `PLACES` blocks of its size take at most a quarter of the limit
        // of `home`.
        let fits = home.closed.acquire() == OPEN
            && home.stream_id.get() == stream_id
            && block_bytes <= home.small.get()
            && block_bytes <= home.limit.get() / (4 * PLACES) as u64;
        let block = CachedBlock { key, address, bytes: block_bytes, before: NEVER };
        let put =
            if fits { home.remote_frees.put(block, bytes, self.next_place.get()) } else { None };
        if let Some(next) = put {
            self.next_place.set(next);
        }
        put.is_some()
    }

    /// Moves blocks freed by other threads into slots.
    #[inline(never)]
    fn take_remote_frees(&self) {
        let Some(_inside) = self.word.enter() else { return };
        let mut unwanted = 0;
        self.remote_frees.take(|block, requested| {
            let fits = self.cached.get() + block.bytes <= self.limit.get() && self.slots.put(block);
            if fits {
                self.cached.add(block.bytes);
                self.counts().freed(requested, block.bytes);
            }
            unwanted += u64::from(!fits);
            fits
        });
        self.unwanted.set(unwanted);
    }

    /// Returns `true` if other threads freed blocks of this cache, but its slots had no room for
    /// them.
    #[inline]
    pub(crate) fn is_crowded(&self) -> bool {
        self.unwanted.get() > 0
    }

    /// Takes out blocks that other threads freed. Call it with the store's lock held.
    pub(crate) fn take_unwanted(&self, mut each: impl FnMut(CachedBlock)) {
        self.unwanted.set(0);
        self.remote_frees.take(|block, requested| {
            self.counts().freed(requested, block.bytes);
            each(block);
            true
        });
    }

    /// Returns `true` if the cache's heap neither fills blocks with zeros nor tracks them.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.is_plain.get() != 0
    }

    /// Makes room in the cache for a block of `bytes`, and passes each removed block to `each`.
    /// Returns `false` if the cache keeps no blocks of that size. Call it with the store's lock
    /// held.
    pub(crate) fn make_room(&self, bytes: u64, mut each: impl FnMut(CachedBlock)) -> bool {
        let has_place = !self.is_large(bytes) || self.caches_large.get() != 0;
        if bytes == 0 || bytes > LARGEST || bytes > self.limit.get() || !has_place {
            return false;
        }
        if self.is_large(bytes) {
            self.take_large(&mut each);
        }
        let mut take = |block: CachedBlock| {
            self.cached.sub(block.bytes);
            each(block);
        };
        if !self.is_large(bytes) {
            self.slots.drain_half(bytes, self.moment.get(), &mut take);
        }
        if self.cached.get() + bytes > self.limit.get() {
            self.slots.drain(self.moment.get(), take);
        }
        true
    }

    /// Takes out the large block. Call it with the store's lock held.
    #[inline]
    pub(crate) fn take_large(&self, each: impl FnOnce(CachedBlock)) {
        if let Some(block) = self.large.take_marked(self.moment.get()) {
            self.cached.sub(block.bytes);
            each(block);
        }
    }

    #[inline]
    pub(crate) fn has_large(&self) -> bool {
        !self.large.is_empty()
    }

    /// Returns `true` if the cache keeps at most one block of `bytes`.
    #[inline]
    pub(crate) fn is_large(&self, bytes: u64) -> bool {
        bytes > self.small.get()
    }

    /// Notes that all work that was enqueued before the frees of the cache's blocks has completed.
    /// Does nothing if the cache belongs to another context or, if `stream_id` is given, to another
    /// stream.
    pub(crate) fn note_completed(&self, context: u64, stream_id: Option<u64>) {
        if self.matches(context, stream_id)
            && let Some(_inside) = self.word.enter()
        {
            self.slots.mark(Note::Completed);
            self.large.mark(Note::Completed);
        }
    }

    /// Records `moment`, a moment after the frees of all blocks in the cache. The stream has
    /// completed all work from before `completed`, an earlier moment. Does nothing if the cache
    /// belongs to another context or stream.
    pub(crate) fn note_moment(&self, context: u64, stream_id: u64, moment: u64, completed: u64) {
        if self.matches(context, Some(stream_id))
            && let Some(_inside) = self.word.enter()
        {
            let earlier_completed = self.moment.get() <= completed;
            self.slots.mark(Note::Marked { earlier_completed });
            self.large.mark(Note::Marked { earlier_completed });
            self.moment.set(moment);
        }
    }

    fn matches(&self, context: u64, stream_id: Option<u64>) -> bool {
        self.cached.get() > 0
            && self.context.get() == context
            && stream_id.is_none_or(|id| id == self.stream_id.get())
            && !self.is_forked()
            && self.is_mine()
    }

    /// Adds the thread's counts to `stats`. Call it with the store's lock held.
    pub(crate) fn merge_counts(&self, stats: &mut RunningStats) {
        self.counts().merge_counts(stats);
    }
}

/// Methods for any thread that holds the lock of the store.
impl ThreadCache {
    /// Takes out all blocks and adds the counts to `stats`. Call it between [`stop`](Self::stop)
    /// and [`resume`](Self::resume), so that the owning thread does not use the cache.
    pub(crate) fn drain(&self, stats: &mut RunningStats, mut each: impl FnMut(CachedBlock)) {
        self.cached.set(0);
        let moment = self.moment.get();
        self.slots.drain(moment, &mut each);
        self.large.take_marked(moment).into_iter().for_each(&mut each);
        self.take_unwanted(each);
        self.counts().merge_counts(stats);
    }

    /// Adds the counts in `own` to `stats`, even while the owner uses the cache. If several caches
    /// share counts, only one of them has these counts in `own`. So a sum over all caches contains
    /// them once.
    pub(crate) fn add_own_counts(&self, stats: &mut RunningStats) {
        self.own.add_counts(stats);
    }

    /// Waits until the owning thread releases the cache's lock, and closes the lock to that thread.
    pub(crate) fn stop(&self) {
        self.word.close();
    }

    /// Ends the pause since [`stop`](Self::stop): the owning thread may take the lock again. Does
    /// nothing if the cache is closed.
    pub(crate) fn resume(&self) {
        if self.closed.get() == OPEN {
            self.word.open();
        }
    }

    /// Returns `true` if the cache belongs to the running thread.
    #[inline]
    pub(crate) fn is_mine(&self) -> bool {
        self.thread.get() == this_thread()
    }

    /// Returns the approximate number of bytes that the cache keeps: the owner may be changing it.
    pub(crate) fn cached(&self) -> u64 {
        self.cached.get()
    }

    /// Returns `true` if the cache keeps a block, or if its remote frees have one.
    pub(crate) fn holds(&self) -> bool {
        self.cached.get() > 0 || self.unwanted.get() > 0 || self.remote_frees.is_filled()
    }

    /// Marks the cache as closed, because its stream or thread ended: `resume` does not open it.
    pub(crate) fn close(&self) {
        self.closed.set(CLOSED);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.get() != OPEN
    }

    pub(crate) fn stream_id(&self) -> u64 {
        self.stream_id.get()
    }

    /// Returns the cache's stream, as the heap identifies it.
    #[inline]
    pub(crate) fn stream(&self) -> StreamRef {
        StreamRef::new(self.slot.get(), StreamHandle(self.raw.get() as usize))
    }

    /// Returns the identifier of the thread that owns the cache; zero if no thread does.
    pub(crate) fn thread(&self) -> u64 {
        self.thread.get()
    }

    /// Returns `true` if the owning thread ended. Another thread may then adopt the cache.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.thread.get() == 0
    }

    /// Assigns an unowned cache to the calling thread.
    pub(crate) fn adopt(&self) {
        self.thread.set(this_thread());
    }

    /// Gives up the cache of this thread, so that another thread can adopt it.
    pub(crate) fn abandon(&self) {
        self.thread.set(0);
    }

    /// Makes this cache share the counters of this thread's other open caches of the store.
    /// `others` has the store's caches. Call it with the store's lock held.
    pub(crate) fn share_counts_with(&self, others: &[&'static ThreadCache]) {
        let is_mine = |one: &&&ThreadCache| one.is_open_beside(self) && one.is_mine();
        self.share(others.iter().find(is_mine).map(|one| one.counts()));
    }

    /// Ends the use of this cache's counters by other caches. From now on, those caches share the
    /// counters of the first of them. `others` has the store's caches. Call it with the store's
    /// lock held, after this cache was closed and its counts merged.
    pub(crate) fn unshare_counts(&self, others: &[&'static ThreadCache]) {
        let shares = |one: &&&'static ThreadCache| {
            one.is_open_beside(self) && ptr::eq(one.counts(), &self.own)
        };
        let sharers: Vec<_> = others.iter().filter(shares).collect();
        sharers.iter().for_each(|one| one.share(Some(&sharers[0].own)));
        self.share(None);
    }

    fn is_open_beside(&self, other: &ThreadCache) -> bool {
        !ptr::eq(self, other) && !self.is_closed()
    }

    fn share(&self, counts: Option<&'static Counts>) {
        let counts = counts.map_or(ptr::null_mut(), |counts| ptr::from_ref(counts).cast_mut());
        self.shared.store(counts, Ordering::Relaxed);
    }

    /// Opens the cache for this thread. Call [`share_counts_with`](ThreadCache::share_counts_with)
    /// first.
    pub(crate) fn open(&self, opening: &Opening) {
        self.adopt();
        self.store.set(opening.store);
        self.context.set(opening.context);
        self.moment.set(0);
        self.stream_id.set(opening.stream_id);
        self.slot.set(opening.stream.number());
        self.raw.set(opening.stream.raw().0 as u64);
        self.forks.set(u64::from(fork::count()));
        let CacheRules { rounding, large, .. } = opening.rules;
        self.rounding.set(rounding.number());
        self.small.set(opening.small);
        self.caches_large.set(u64::from(large));
        self.is_plain.set(u64::from(opening.is_plain));
        self.limit.set(opening.limit);
        self.heap.lock().get_or_insert_with(|| opening.heap.clone());
        // Stores the state last, so that a thread that sees the cache as open also sees its stream.
        self.closed.release(OPEN);
        self.word.open();
    }
}

impl ThreadCache {
    #[inline]
    fn counts(&self) -> &Counts {
        // SAFETY: the pointer is null, or `share` stored a `&'static Counts`.
        unsafe { self.shared.load(Ordering::Relaxed).as_ref() }.unwrap_or(&self.own)
    }

    /// Returns the cache's heap; `None` once that heap has no block left.
    pub(crate) fn heap(&self) -> Option<Arc<dyn CacheOwner>> {
        self.heap.lock().clone()
    }

    /// Removes the heap, and returns the reference that the cache held.
    pub(crate) fn leave_heap(&self) -> Option<Arc<dyn CacheOwner>> {
        self.heap.lock().take()
    }

    /// Marks the cache so that it is never reused.
    pub(crate) fn mark_spent(&self) {
        self.stop();
        self.closed.set(SPENT);
    }

    /// Returns `true` if the cache is closed and no heap has it, so any heap may open it.
    pub(crate) fn is_free(&self) -> bool {
        // In a forked child, returns `false` without the lock: another thread of the parent may
        // have held it.
        self.closed.get() == CLOSED && !self.is_forked() && self.heap.lock().is_none()
    }

    /// Returns `true` if this process is a forked child of the process that opened the cache.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        self.forks.get() != u64::from(fork::count())
    }
}

#[cfg(all(test, loom))]
mod tests {
    use loom::sync::Arc;

    use super::*;

    const BYTES: u64 = 4096;

    /// The owner frees a block while another thread lowers the limit to zero, as a heap does above
    /// its soft limit. The cache refuses the block, or the other thread takes the block out.
    #[test]
    fn lowered_limit_keeps_no_block() {
        loom::model(|| {
            let cache = Arc::new(ThreadCache::default());
            cache.adopt();
            cache.forks.set(u64::from(fork::count()));
            cache.small.set(2 * BYTES);
            cache.limit.set(2 * BYTES);
            cache.closed.release(OPEN);
            cache.word.open();
            let lowering = cache.clone();
            let lowering = loom::thread::spawn(move || {
                lowering.limit.set(0);
                lowering.stop();
                let mut taken = 0;
                lowering.drain(&mut RunningStats::default(), |block| taken += block.bytes);
                lowering.resume();
                taken
            });
            let lease = Lease {
                stream: cache.stream(),
                stream_id: cache.stream_id(),
                key: Some(1),
                address: BYTES,
                bytes: BYTES,
                block_bytes: BYTES,
                track: None,
            };
            let is_kept = cache.keep_own(&lease);
            let taken = lowering.join().unwrap();
            assert_eq!((taken, cache.cached()), (if is_kept { BYTES } else { 0 }, 0));
        });
    }
}
