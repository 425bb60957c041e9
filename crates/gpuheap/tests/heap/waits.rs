//! Tests that all earlier frees count as completed after a wait by the program itself. A stream
//! then reuses their memory without a wait for later work. Later frees do not count as completed.

use gpuheap::emu::Schedule;
use gpuheap::{Device, Event, Heap, PoolKind, Stream};

use crate::support::{assert_all_returned, device, emulated, on_real_gpu};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const POOLS: [PoolKind; 4] =
    [PoolKind::Simple, PoolKind::Binned, PoolKind::Split, PoolKind::Stitched];

/// A way for the program to observe that a stream's work is completed. The event was recorded on
/// the stream after that work.
type Learn = fn(&Device, &Stream, &Event);

const WAYS: [(&str, Learn); 4] = [
    ("stream", |_, stream, _| stream.synchronize().unwrap()),
    ("device", |device, _, _| device.synchronize().unwrap()),
    ("event", |_, _, event| event.synchronize().unwrap()),
    ("asked", |_, stream, event| {
        event.synchronize().unwrap();
        stream.is_done().unwrap();
    }),
];

/// Sizes of blocks. For each pool, threads cache blocks of some of these sizes and not of the
/// others.
const SIZES: [usize; 4] = [KIB, 48 * KIB, MIB, 5 * MIB];

fn heap(device: &Device, pool: PoolKind, keeps: u64) -> Heap {
    let heap = Heap::builder(device).without_environment().pool(pool).thread_cache(keeps);
    heap.hard_limit(1 << 30).build().unwrap()
}

#[test]
fn later_work_is_not_waited_for() {
    if on_real_gpu() {
        return;
    }
    for pool in POOLS {
        for keeps in [0, 16 << 20] {
            for ((way, learn), size) in WAYS.iter().flat_map(|way| SIZES.map(|size| (*way, size))) {
                for frees_again in [false, true] {
                    let what = format!("{pool}, keeps {keeps}, {way}, {size} bytes, {frees_again}");
                    let device = emulated(4 << 30, Schedule::OnDemand);
                    let heap = heap(&device, pool, keeps);
                    let (a, b) = (device.stream().unwrap(), device.stream().unwrap());
                    let mut other = heap.on(&a).filled(100 * KIB, 1_u8).unwrap();
                    drop(heap.on(&a).filled(size, 2_u8).unwrap());
                    let event = a.record().unwrap();
                    learn(&device, &a, &event);
                    // Keeps `a` busy, although each query by the heap completes some of the work.
                    (0..64).for_each(|_| other.fill(3).unwrap());
                    if frees_again {
                        // This array is freed after the program's wait, and is too large to reuse
                        // the memory of the array freed before.
                        drop(heap.on(&a).filled(64 * MIB, 4_u8).unwrap());
                    }
                    let emulator = device.emulator().unwrap();
                    let waits = emulator.calls_of("cuStreamWaitEvent");
                    let theirs = heap.on(&b).filled(size, 5_u8).unwrap();
                    assert_eq!(emulator.calls_of("cuStreamWaitEvent"), waits, "{what}");
                    b.synchronize().unwrap();
                    assert!(!a.is_done().unwrap(), "{what}");
                    drop((other, theirs));
                    assert_all_returned(&device, &heap, &what);
                }
            }
        }
    }
}

/// Frees `bytes` on one stream and requests them on another stream before the first stream's work
/// is done. Returns whether the second stream is made to wait.
fn waits_for_freed(pool: PoolKind, keeps: u64, bytes: usize, limit: u64, what: &str) -> bool {
    let device = emulated(4 << 30, Schedule::OnDemand);
    let builder = Heap::builder(&device).without_environment().pool(pool).thread_cache(keeps);
    let heap = builder.hard_limit(limit).build().unwrap();
    let (a, b) = (device.stream().unwrap(), device.stream().unwrap());
    let mut freed = heap.on(&a).filled(bytes, 1_u8).unwrap();
    // Keeps `a` busy, although each query by the heap completes some of the emulated work.
    (0..64).for_each(|_| freed.fill(1).unwrap());
    drop(freed);
    let emulator = device.emulator().unwrap();
    let before = emulator.calls_of("cuStreamWaitEvent");
    let theirs = heap.on(&b).filled(bytes, 2_u8).unwrap();
    let waits = emulator.calls_of("cuStreamWaitEvent") > before;
    b.synchronize().unwrap();
    assert_eq!(a.is_done().unwrap(), waits, "{what}");
    drop(theirs);
    assert_all_returned(&device, &heap, what);
    waits
}

#[test]
fn spare_memory_avoids_waits() {
    if on_real_gpu() {
        return;
    }
    for pool in POOLS {
        for (keeps, bytes) in [0, 16 << 20].into_iter().flat_map(|keeps| SIZES.map(|b| (keeps, b)))
        {
            let what = format!("{pool}, keeps {keeps}, {bytes} bytes");
            assert!(!waits_for_freed(pool, keeps, bytes, 1 << 30, &what), "{what}");
        }
        // The limit leaves no room for two arrays, so the stream waits.
        let what = format!("{pool} at its limit");
        assert!(waits_for_freed(pool, 0, 5 * MIB, 8 << 20, &what), "{what}");
    }
}

/// Two streams pass memory to each other while all their work is pending. The memory that the heap
/// takes does not grow with the number of passes.
#[test]
fn memory_taken_against_waits_is_bounded() {
    if on_real_gpu() {
        return;
    }
    for pool in POOLS {
        let device = emulated(4 << 30, Schedule::OnDemand);
        let heap = heap(&device, pool, 0);
        let streams = [device.stream().unwrap(), device.stream().unwrap()];
        for at in 0..100 {
            drop(heap.on(&streams[at % 2]).filled(24 * MIB, at as u8).unwrap());
        }
        let reserved = heap.usage().unwrap().reserved_peak;
        assert!(reserved <= 160 << 20, "{pool}: {reserved}");
        assert!(device.emulator().unwrap().calls_of("cuStreamWaitEvent") <= 100, "{pool}");
        assert_all_returned(&device, &heap, pool.name());
    }
}

#[test]
fn free_after_wait_stays_pending() {
    for pool in PoolKind::ALL {
        for ((way, learn), size) in WAYS.iter().flat_map(|way| SIZES.map(|size| (*way, size))) {
            for late in [false, true] {
                let what = format!("{pool}, {way}, {size} bytes, {late}");
                let device = device(1 << 30, Schedule::OnDemand);
                let heap = heap(&device, pool, 16 << 20);
                let [a, b, c] = [(); 3].map(|()| device.stream().unwrap());
                let x = heap.on(&a).filled(size, 7_u8).unwrap();
                // `again` reuses the first freed block; the second block stays in the cache.
                drop(heap.on(&c).filled(size, 1_u8).unwrap());
                let again = heap.on(&c).filled(size, 7_u8).unwrap();
                drop(heap.on(&c).filled(size, 1_u8).unwrap());
                let event = c.record().unwrap();
                if !late {
                    learn(&device, &c, &event);
                }
                let copies = [&x, &again].map(|array| array.copy_to(&heap.on(&c)).unwrap());
                drop((x, again));
                // The event was recorded before the copies, so a wait for it does not cover them. A
                // wait for the stream or the device would cover them.
                if late && way == "event" {
                    learn(&device, &c, &event);
                }
                let taken = [(); 4].map(|()| heap.on(&b).filled(size, 9_u8).unwrap());
                b.synchronize().unwrap();
                for copy in &copies {
                    assert!(copy.to_vec().unwrap().iter().all(|byte| *byte == 7), "{what}");
                }
                drop((taken, copies, a));
                assert_all_returned(&device, &heap, &what);
            }
        }
    }
}

/// A wait by another thread also shows that frees in the pool are completed.
#[test]
fn another_threads_wait_counts_too() {
    if on_real_gpu() {
        return;
    }
    for pool in POOLS {
        let device = emulated(4 << 30, Schedule::OnDemand);
        let heap = heap(&device, pool, 0);
        let (a, b) = (device.stream().unwrap(), device.stream().unwrap());
        let mut other = heap.on(&a).filled(100 * KIB, 1_u8).unwrap();
        drop(heap.on(&a).filled(5 * MIB, 2_u8).unwrap());
        let waiting = a.clone();
        std::thread::spawn(move || waiting.synchronize().unwrap()).join().unwrap();
        other.fill(3).unwrap();
        let theirs = heap.on(&b).filled(5 * MIB, 5_u8).unwrap();
        b.synchronize().unwrap();
        assert!(!a.is_done().unwrap(), "{pool}");
        drop((other, theirs));
        assert_all_returned(&device, &heap, pool.name());
    }
}
