//! Tests caches at the end of heaps, threads and devices.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, sync_channel};
use std::thread;
use std::time::Duration;

use gpuheap_pool::testing::{PolicyCall, Watched};
use gpuheap_pool::{Stitched, Tuning};

use std::sync::Mutex;

use super::*;
use crate::emu::{Options, Profile};
use crate::thread_cache::lock_free;
use crate::{Block, Device, Heap, PoolKind, Stream};

fn device() -> Device {
    Device::emulated(Profile::with_memory(1 << 30).without_context()).unwrap()
}

fn checked_device() -> Device {
    let profile = Profile::with_memory(1 << 30).without_context();
    Device::emulated_with(Options::with_device(profile)).unwrap()
}

fn caches(heap: &Heap) -> Vec<&'static ThreadCache> {
    heap.store(MemoryKind::Device).lock().caches.clone()
}

fn is_among(cache: &ThreadCache, caches: &[&'static ThreadCache]) -> bool {
    caches.iter().any(|one| std::ptr::eq(*one, cache))
}

/// Returns how many times a cache is in the list of caches for reuse.
fn waiting(cache: &ThreadCache) -> usize {
    lock_free().unwrap().iter().filter(|one| std::ptr::eq(**one, cache)).count()
}

#[test]
fn cache_freed_twice_is_reused_once() {
    let cache: &'static ThreadCache = Box::leak(Box::default());
    free(cache);
    free(cache);
    // A test on another thread may have taken the cache.
    assert!(waiting(cache) <= 1);
    let taken = unused();
    // The cache's previous user returns it late.
    free(taken);
    assert_eq!(waiting(taken), 0, "it is this thread's by now");
    taken.abandon();
    free(taken);
}

#[test]
fn reopened_heap_caches_old_blocks() {
    let device = device();
    let stream = device.stream().unwrap();
    let heap = device.heap().unwrap();
    let [first, second, third] = [(); 3].map(|()| heap.allocate(64 << 10, &stream).unwrap());
    drop(heap.allocate(5120, &stream).unwrap());
    let [cache] = caches(&heap)[..] else { panic!("one thread, one stream") };
    assert_eq!(cache.cached(), 5120);
    drop(heap);
    assert!(cache.is_closed() && cache.cached() == 0, "nobody can ask for it");
    drop(first);
    assert_eq!(cache.cached(), 0);

    let heap = device.heap().unwrap();
    drop(heap.allocate(5120, &stream).unwrap());
    assert!(is_among(cache, &caches(&heap)) && !cache.is_closed());
    assert_eq!((caches(&heap).len(), cache.cached()), (1, 5120));
    drop(second);
    assert_eq!(cache.cached(), (64 << 10) + 5120, "older blocks come back to it too");
    let usage = heap.usage().unwrap();
    assert_eq!((usage.live, usage.stats.live_allocations, usage.stats.frees), (64 << 10, 1, 4));
    drop(third);
    heap.reclaim_all().unwrap();
    let usage = heap.usage().unwrap();
    assert_eq!((usage.live, usage.reserved, usage.stats.frees), (0, 0, 5));
}

#[test]
fn remote_frees_return_to_origin() {
    const BYTES: u64 = 4096;
    let device = device();
    let stream = device.stream().unwrap();
    let heap = Heap::builder(&device).pool(PoolKind::Stitched).build().unwrap();
    // The other thread's cache has room for `own` blocks, and this thread's cache has room for
    // `sent` blocks that other threads freed. The test allocates one block more.
    let (own, sent) = (8, 64);
    let allocate = |count: u64| -> Vec<Block> {
        (0..count).map(|_| heap.allocate(BYTES, &stream).unwrap()).collect()
    };
    let addresses =
        |blocks: &[Block]| -> BTreeSet<u64> { blocks.iter().map(Block::address).collect() };
    let mut blocks = allocate(own + sent + 1);
    let last = blocks.pop().unwrap();
    let freed = addresses(&blocks);
    let [cache] = caches(&heap)[..] else { panic!("one thread, one stream") };
    thread::scope(|scope| {
        scope.spawn(|| {
            drop(blocks);
            let [other] =
                caches(&heap).into_iter().filter(|one| one.is_mine()).collect::<Vec<_>>()[..]
            else {
                panic!("one for the other thread")
            };
            assert_eq!((other.cached(), cache.cached()), (own * BYTES, 0));
            assert!(cache.holds(), "the rest is among the remote frees");
            // The remote frees of the blocks' cache are full, and so is this thread's cache. So
            // this free moves half of this thread's cache to the pool.
            drop(last);
            assert_eq!(other.cached(), (own / 2 + 1) * BYTES);
        });
    });
    let again = allocate(sent);
    assert!(addresses(&again).is_subset(&freed));
    drop(again);
    // Again, another thread frees this thread's blocks. This thread does not allocate afterwards,
    // so it does not collect them. `reclaim_all` has to.
    let blocks = allocate(own + sent);
    thread::scope(|scope| scope.spawn(|| drop(blocks)).join()).unwrap();
    heap.reclaim_all().unwrap();
    let usage = heap.usage().unwrap();
    assert_eq!((usage.live, usage.reserved), (0, 0));
}

#[test]
fn passed_blocks_are_live_once() {
    const BYTES: u64 = 4096;
    let rounds = if cfg!(miri) { 50 } else { 2000 };
    let device = device();
    let stream = device.stream().unwrap();
    let heap = Heap::builder(&device).pool(PoolKind::Stitched).build().unwrap();
    let (send, blocks) = sync_channel::<Block>(0);
    let (done, is_done) = sync_channel::<()>(0);
    thread::scope(|scope| {
        scope.spawn(move || {
            for block in blocks {
                drop(block);
                done.send(()).unwrap();
            }
        });
        for _ in 0..rounds {
            send.send(heap.allocate(BYTES, &stream).unwrap()).unwrap();
            is_done.recv().unwrap();
        }
        drop(send);
    });
    let usage = heap.usage().unwrap();
    assert_eq!((usage.live, usage.stats.frees), (0, rounds));
    // One block at a time is live, plus the blocks in remote frees that no thread has collected
    // yet.
    assert!(usage.live_peak <= 80 * BYTES, "{}", usage.live_peak);
}

type Meanwhile = Arc<Mutex<Option<Box<dyn FnOnce() + Send>>>>;

/// While this thread's cache closes, another thread frees a block that came through it. The other
/// thread's cache is first in the heap's list: it must not resume before the close is complete.
#[test]
fn closing_cache_receives_no_block() {
    const BYTES: u64 = 4096;
    let device = device();
    let stream = device.stream().unwrap();
    let heap = Heap::builder(&device).pool(PoolKind::Stitched).build().unwrap();
    let meanwhile = Meanwhile::default();
    let in_first_free = meanwhile.clone();
    let policy = Watched(Stitched::with(Tuning::default()), move |asked| {
        let happens = (asked == PolicyCall::Free).then(|| in_first_free.lock().unwrap().take());
        if let Some(meanwhile) = happens.flatten() {
            meanwhile();
        }
    });
    heap.store(MemoryKind::Device).lock().policy = Box::new(policy);
    let (send, blocks) = channel::<Block>();
    let (done, is_done) = channel::<()>();
    thread::scope(|scope| {
        let (other_heap, other_stream) = (heap.clone(), stream.clone());
        scope.spawn(move || {
            let allocate = |()| other_heap.allocate(BYTES, &other_stream).unwrap();
            drop(allocate(()));
            done.send(()).unwrap();
            drop(blocks.recv().unwrap());
            // Fills this thread's bin, now that both threads have started. The free of `victim`
            // then tries the main thread's cache.
            drop([(); 8].map(allocate));
            done.send(()).unwrap();
            drop(blocks.recv().unwrap());
            let _ = done.send(());
        });
        is_done.recv().unwrap();
        let victim = heap.allocate(BYTES, &stream).unwrap();
        send.send(heap.allocate(512, &stream).unwrap()).unwrap();
        is_done.recv().unwrap();
        // Caches a block that returns to the policy when the cache closes.
        drop(heap.allocate(2 * BYTES, &stream).unwrap());
        let [first, own] = caches(&heap)[..] else { panic!("one for each thread") };
        assert!(!first.is_mine() && own.is_mine());
        *meanwhile.lock().unwrap() = Some(Box::new(move || {
            send.send(victim).unwrap();
            // The thread has to wait for the lock. If it did not wait, it would end immediately.
            let _ = is_done.recv_timeout(Duration::from_millis(100));
        }));
        heap.store(MemoryKind::Device).lock().close(ThreadCache::is_mine);
    });
    let mut state = heap.store(MemoryKind::Device).lock();
    assert_eq!((state.stats().live_blocks, state.granted), (0, 0));
}

/// One thread requests the heap and holds a block of it for a moment. Another thread requests the
/// heap and drops it immediately.
#[test]
fn heap_ends_before_it_is_reopened() {
    let device = device();
    let heap = Heap::builder(&device).pool(PoolKind::Binned).build().unwrap();
    let inner = heap.inner().clone();
    let rounds = if cfg!(miri) { 20 } else { 20_000 };
    let stop = AtomicBool::new(false);
    drop(heap);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                drop(Heap::from_inner(inner.clone()));
            }
        });
        let stream = device.stream().unwrap();
        let lost = (0..rounds).find(|_| {
            let block = Heap::from_inner(inner.clone()).allocate(5000, &stream).unwrap();
            block.free().is_err()
        });
        stop.store(true, Ordering::Relaxed);
        assert_eq!(lost, None, "its cache had let go of the heap");
    });
    let stats = inner.store(MemoryKind::Device).lock().stats();
    let frees = rounds;
    assert_eq!((stats.live, stats.allocations, stats.frees), (0, frees, frees));
}

/// Simulates another thread of the parent that held the lock at the fork.
#[test]
#[cfg(all(unix, not(miri)))]
fn forked_child_waits_for_no_lock() {
    crate::fork::watch();
    let cache: &'static ThreadCache = Box::leak(Box::default());
    let held = lock_free();
    // SAFETY: the child takes no lock that another thread may hold. The test checks this, and an
    // alarm ends a child that waits for a lock. The child ends by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: the default action is to end the process.
        unsafe { libc::alarm(10) };
        free(cache);
        free(unused());
        cache.end();
        // SAFETY: this call ends the child without the parent's exit handlers.
        unsafe { libc::_exit(0) }
    }
    drop(held);
    let mut status = 0;
    // SAFETY: the pointer is valid for the call, and this process made the child.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "the child hung or failed");
}

/// Two threads have caches. After a reset of the device, a third thread drops blocks of both.
#[test]
fn reset_caches_are_not_reused() {
    /// Keeps the spent caches reachable; otherwise Miri reports them as leaked.
    static SPENT: Mutex<Vec<&'static ThreadCache>> = Mutex::new(Vec::new());
    let pools = [PoolKind::Binned, PoolKind::Split, PoolKind::Stitched];
    for pool in pools.into_iter().take(if cfg!(miri) { 1 } else { 3 }) {
        let device = checked_device();
        let heap = Heap::builder(&device).pool(pool).build().unwrap();
        let inner = Arc::downgrade(heap.inner());
        let use_heap = |heap: &Heap, stream: &Stream| -> Block {
            drop(heap.allocate(5000, stream).unwrap());
            heap.allocate(1 << 20, stream).unwrap()
        };
        let streams = [(); 2].map(|()| device.stream().unwrap());
        let mine = use_heap(&heap, &streams[0]);
        let (to_other, orders) = channel::<(Heap, Stream)>();
        let (to_me, blocks) = channel();
        let other = thread::spawn(move || {
            for (heap, stream) in orders {
                let block = use_heap(&heap, &stream);
                drop((heap, stream));
                to_me.send(block).unwrap();
            }
        });
        to_other.send((heap.clone(), streams[1].clone())).unwrap();
        let theirs = blocks.recv().unwrap();
        let old = caches(&heap);
        assert_eq!(old.len(), 2, "{pool}");
        SPENT.lock().unwrap().extend(&old);
        drop((heap, streams));
        assert!(inner.upgrade().is_some(), "{pool}: its blocks are there");

        // SAFETY: no address of the device is used, and no other thread uses the device.
        let fresh = unsafe { device.reset() }.unwrap();
        assert!(inner.upgrade().is_none(), "{pool}: none of its blocks can come back");
        let is_spent = |cache: &&ThreadCache| {
            cache.is_closed() && !cache.is_free() && cache.cached() == 0 && waiting(cache) == 0
        };
        assert!(old.iter().all(is_spent), "{pool}");
        thread::spawn(move || drop((mine, theirs))).join().unwrap();

        let heap = Heap::builder(&fresh).pool(pool).build().unwrap();
        let streams = [(); 2].map(|()| fresh.stream().unwrap());
        let mine = use_heap(&heap, &streams[0]);
        to_other.send((heap.clone(), streams[1].clone())).unwrap();
        let theirs = blocks.recv().unwrap();
        let new = caches(&heap);
        assert!(new.len() == 2 && !new.iter().any(|cache| is_among(cache, &old)), "{pool}");
        drop((mine, theirs, to_other));
        other.join().unwrap();
        assert!(old.iter().all(is_spent), "{pool}: not when their threads end either");
        heap.reclaim_all().unwrap();
        assert_eq!(heap.usage().unwrap().reserved, 0, "{pool}");
        assert_eq!(fresh.emulator().unwrap().findings().unwrap(), [], "{pool}");
    }
}
