//! Tests of large copies. They are staged through pinned memory.

use std::thread;

use gpuheap::emu::{Fault, FaultPlan, Options, Profile, Schedule};
use gpuheap::{Device, Heap, MemoryKind, Staging};
use gpuheap_driver::CUresult;
use gpuheap_pool::testing::Random;

use crate::failing::{assert_errs_or_recovers, with_failing_call};
use crate::support::{assert_all_returned, assert_no_findings, device, emulated};

/// Settings with several threads on any machine, and with pieces so small that a copy takes many.
const SMALL: Staging = Staging { threads: 3, piece: 64 << 10, slots: 2, threshold: 256 << 10 };

fn staged(device: &Device, staging: Staging) -> Heap {
    Heap::builder(device).without_environment().staging(staging).build().unwrap()
}

fn numbers(count: usize, seed: u64) -> Vec<u32> {
    (0..count as u64).map(|n| (n * 2_654_435_761 + seed) as u32).collect()
}

/// Returns how often the emulator executed a driver call; `None` on a real GPU.
fn copies(device: &Device, symbol: &str) -> Option<u64> {
    device.emulator().map(|emulator| emulator.calls_of(symbol))
}

#[test]
fn contents_are_right_whatever_the_size() {
    let device = device(1 << 30, Schedule::Seeded(3));
    for threads in [1, 3] {
        let heap = staged(&device, Staging { threads, ..SMALL });
        let target = heap.target().unwrap();
        let (piece, threshold) = (SMALL.piece / 4, SMALL.threshold / 4);
        let around = |count: usize| [count - 1, count, count + 1];
        let sizes = [around(threshold), around(threshold + piece), around(13 * piece)];
        for count in sizes.into_iter().flatten().chain([100 * piece + 77]) {
            let source = numbers(count, threads as u64);
            let array = target.array(&source).unwrap();
            assert!(array.to_vec().unwrap() == source, "{count} elements, {threads} threads");
            // Tests a window of the array that does not begin at the array's start.
            let tail = array.slice(5..).unwrap().to_vec().unwrap();
            assert!(tail == source[5..], "{count} elements from 5 on");
        }
        let used = heap.usage_of(MemoryKind::Pinned).unwrap();
        assert_eq!(used.live, 0);
        assert!(used.cached > 0, "nothing was staged");
        assert_all_returned(&device, &heap, "sizes");
    }
}

#[test]
fn copy_is_staged_from_threshold() {
    let device = emulated(1 << 30, Schedule::Seeded(4));
    let heap = staged(&device, SMALL);
    let target = heap.target().unwrap();
    for (bytes, pieces) in [(SMALL.threshold - 1, 1), (SMALL.threshold, 4), (300 << 10, 5)] {
        let [up, down] = ["cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2"];
        let before = [up, down].map(|symbol| copies(&device, symbol).unwrap());
        let array = target.array(&vec![7_u8; bytes]).unwrap();
        assert_eq!(array.to_vec().unwrap(), vec![7; bytes]);
        let after = [up, down].map(|symbol| copies(&device, symbol).unwrap());
        assert_eq!([after[0] - before[0], after[1] - before[1]], [pieces; 2], "{bytes} bytes");
    }
    assert_all_returned(&device, &heap, "threshold");
}

/// The driver itself copies pinned memory, and arrays that are not in device memory.
#[test]
fn page_locked_copy_is_not_staged() {
    let device = emulated(1 << 30, Schedule::Seeded(5));
    let heap = staged(&device, SMALL);
    let target = heap.target().unwrap();
    let count = 2 * SMALL.threshold;
    let pinned = target.kind(MemoryKind::Pinned).filled(count, 9_u8).unwrap();
    let before = copies(&device, "cuMemcpyHtoDAsync_v2").unwrap();
    let array = target.array(&pinned.as_slice().unwrap()[..]).unwrap();
    assert_eq!(copies(&device, "cuMemcpyHtoDAsync_v2").unwrap() - before, 1);
    let allocations = heap.usage_of(MemoryKind::Pinned).unwrap().stats.allocations;
    assert_eq!(allocations, 1, "pinned memory was staged");
    assert_eq!(array.to_vec().unwrap(), vec![9; count]);
    let unified = target.kind(MemoryKind::Unified).array(&vec![8_u8; count]).unwrap();
    assert_eq!(unified.to_vec().unwrap(), vec![8; count]);
    drop((pinned, array, unified));
    assert_all_returned(&device, &heap, "page-locked");
}

#[test]
fn source_may_change_once_staged() {
    for seed in 0..20 {
        let device = device(1 << 30, Schedule::Seeded(seed));
        let heap = staged(&device, SMALL);
        let target = heap.target().unwrap();
        let mut source = numbers(200_000, seed);
        let first = target.array(&source).unwrap();
        let before = source.clone();
        source.fill(1);
        // The second upload must not overwrite staging slots that the device still reads.
        let second = target.array(&source).unwrap();
        source.fill(2);
        assert!(first.to_vec().unwrap() == before, "seed {seed}");
        assert!(second.to_vec().unwrap().iter().all(|one| *one == 1), "seed {seed}");
        drop((first, second));
        assert_all_returned(&device, &heap, &format!("seed {seed}"));
    }
}

/// Tests uploads whose slots still belong to earlier uploads that the device has not reached.
#[test]
fn staging_slots_wait_for_device_read() {
    let device = emulated(1 << 30, Schedule::OnDemand);
    // An upload has a slot for each of its pieces, so it waits only for earlier uploads.
    let heap = staged(&device, Staging { threads: 1, slots: 4, ..SMALL });
    let target = heap.target().unwrap();
    let arrays: Vec<_> =
        (0..12_u64).map(|nth| target.array(&numbers(SMALL.threshold / 4, nth)).unwrap()).collect();
    for (nth, array) in arrays.iter().enumerate() {
        assert!(array.to_vec().unwrap() == numbers(SMALL.threshold / 4, nth as u64), "{nth}");
    }
    drop(arrays);
    assert_all_returned(&device, &heap, "slots");
}

#[test]
fn staged_upload_does_not_wait() {
    let device = emulated(1 << 30, Schedule::OnDemand);
    let heap = staged(&device, Staging { threads: 2, slots: 4, ..SMALL });
    let target = heap.target().unwrap();
    let source = numbers(SMALL.threshold / 4, 1);
    let waits = || device.emulator().unwrap().calls_of("cuEventSynchronize");
    let before = waits();
    let array = target.array(&source).unwrap();
    assert_eq!(waits(), before, "there are as many slots as pieces");
    assert!(!target.stream().is_done().unwrap());
    assert!(array.to_vec().unwrap() == source);
    drop(array);
    assert_all_returned(&device, &heap, "no wait");
}

#[test]
fn threads_copy_at_once() {
    let device = device(1 << 30, Schedule::Seeded(7));
    let heap = staged(&device, SMALL);
    let shared = heap.target().unwrap();
    thread::scope(|scope| {
        for nth in 0..4_u64 {
            let (heap, device, shared) = (&heap, &device, &shared);
            scope.spawn(move || {
                let mut random = Random(nth);
                let own = heap.on(&device.stream().unwrap());
                for turn in 0..8 {
                    let target = if random.below(2) == 0 { &own } else { shared };
                    let count = (SMALL.threshold as u64 / 8 + random.below(200_000)) as usize;
                    let source = numbers(count, 1000 * nth + turn);
                    let mut array = target.array(&source).unwrap();
                    assert!(array.to_vec().unwrap() == source, "thread {nth}, turn {turn}");
                    let other = numbers(count, 7);
                    array.write_from(&other).unwrap();
                    assert!(array.to_vec().unwrap() == other, "thread {nth}, turn {turn}");
                }
            });
        }
    });
    drop(shared);
    assert_all_returned(&device, &heap, "threads");
}

#[test]
fn copy_without_pinned_memory_is_plain() {
    let profile = || Profile::with_memory(1 << 30).without_context();
    let scarce = Profile { pinned_limit: Some(1 << 10), ..profile() };
    let wsl2 = Profile::wsl2_rtx4060();
    for (profile, limit) in [(profile(), Some(2 << 20)), (scarce, None), (wsl2, Some(2 << 20))] {
        let device = Device::emulated_with(Options::with_device(profile)).unwrap();
        let builder = Heap::builder(&device).without_environment();
        let builder = builder.staging(Staging { piece: 1 << 20, ..SMALL });
        let builder = limit.into_iter().fold(builder, |builder, limit| builder.pinned_limit(limit));
        let heap = builder.build().unwrap();
        let source = numbers(1 << 20, 1);
        let array = heap.target().unwrap().array(&source).unwrap();
        assert!(array.to_vec().unwrap() == source);
        assert_eq!(heap.usage_of(MemoryKind::Pinned).unwrap().stats.allocations, 0);
        drop(array);
        // Checks only that there are no findings, and no figures: on WSL2 the driver may report
        // more memory than it has.
        assert_no_findings(&device, "no pinned memory");
    }
}

/// Under a limit on pinned memory, a copy uses fewer threads, and leaves room for memory that the
/// program pins.
#[test]
fn staging_leaves_room_below_a_limit() {
    let device = emulated(1 << 30, Schedule::Seeded(2));
    let builder = Heap::builder(&device).without_environment().staging(SMALL);
    let heap = builder.pinned_limit(4 << 20).build().unwrap();
    let target = heap.target().unwrap();
    let source = numbers(1 << 18, 1);
    let array = target.array(&source).unwrap();
    assert!(heap.usage_of(MemoryKind::Pinned).unwrap().cached > 0);
    let pinned = target.kind(MemoryKind::Pinned).filled(4 << 20, 1_u8).unwrap();
    let usage = heap.usage_of(MemoryKind::Pinned).unwrap();
    assert_eq!((usage.live, usage.reserved), (4 << 20, 4 << 20));
    // No pinned memory is left, so this copy is not staged.
    assert!(array.to_vec().unwrap() == source);
    drop((array, pinned));
    assert_all_returned(&device, &heap, "room");
}

#[test]
fn flush_releases_staging_memory() {
    let device = emulated(1 << 30, Schedule::Seeded(2));
    let heap = staged(&device, SMALL);
    let source = numbers(1 << 18, 1);
    let meter = heap.meter().unwrap().with_thread();
    let array = heap.target().unwrap().array(&source).unwrap();
    let used = meter.read().unwrap().thread.unwrap();
    assert_eq!(
        (used.allocations, used.allocated_bytes),
        (1, 1 << 20),
        "staging is no allocation of theirs"
    );
    let pinned = heap.usage_of(MemoryKind::Pinned).unwrap();
    assert_eq!((pinned.live, pinned.stats.live_allocations), (0, 0));
    let report = heap.flush().unwrap();
    let flushed = report.kinds.iter().find(|kind| kind.kind == MemoryKind::Pinned).unwrap();
    assert!(flushed.given_back > 0);
    assert_eq!(heap.usage_of(MemoryKind::Pinned).unwrap().reserved, 0);
    drop(array);
    assert_all_returned(&device, &heap, "flush");
}

#[test]
fn staging_is_zeroed_if_requested() {
    let device = emulated(1 << 30, Schedule::Seeded(2));
    let heap = staged(&device, Staging { threads: 1, ..SMALL });
    let target = heap.target().unwrap().zero_on_free(true);
    drop(target.array(&vec![0x5a_u8; SMALL.threshold]).unwrap());
    let bytes = SMALL.piece * SMALL.slots;
    let pinned = target.kind(MemoryKind::Pinned).uninit::<u8, _>(bytes).unwrap();
    // SAFETY: the emulator's pinned memory exists, and an earlier copy through it wrote all bytes.
    let found = unsafe { pinned.assume_written() };
    assert_eq!(found.to_vec().unwrap(), vec![0; bytes]);
    drop(found);
    assert_all_returned(&device, &heap, "zeroed");
}

/// Fails one call of a staged copy. With one thread, the order of calls is fixed.
fn sweep(threads: usize, nth: u64, code: CUresult) -> (bool, bool) {
    let device = emulated(96 << 20, Schedule::Seeded(1));
    let emulator = device.emulator().unwrap().clone();
    let heap = staged(&device, Staging { threads, ..SMALL });
    let stream = device.stream().unwrap();
    let source = numbers(SMALL.threshold / 2, 3);
    let (result, got_there) = with_failing_call(&emulator, nth, code, || {
        heap.on(&stream).array(&source).and_then(|array| array.to_vec())
    });

    let what = format!("{code:?} at call {nth}: {:?}", result.as_ref().err());
    if let Ok(read) = &result {
        assert!(read == &source, "{what}");
    }
    let again = heap.on(&stream).array(&source).unwrap();
    assert!(again.to_vec().unwrap() == source, "{what}");
    drop(again);
    let usage = heap.usage_of(MemoryKind::Pinned).unwrap();
    assert_eq!((usage.live, usage.stats.live_allocations), (0, 0), "{what}");
    assert_all_returned(&device, &heap, &what);
    (result.is_err(), got_there)
}

#[test]
fn failing_call_errs_or_recovers() {
    for threads in [1, 3] {
        let what = format!("{threads} threads");
        assert_errs_or_recovers(&what, (30, 1), |nth, code| sweep(threads, nth, code));
    }
}

#[test]
fn a_lost_context_ends_the_copy() {
    let device = emulated(96 << 20, Schedule::Seeded(1));
    let heap = staged(&device, SMALL);
    let target = heap.target().unwrap();
    let lost = Fault::nth("cuMemcpyHtoDAsync_v2", 5, CUresult::ERROR_ILLEGAL_ADDRESS);
    device.emulator().unwrap().set_faults(FaultPlan::new([lost.context_lost()]));
    let error = target.array(&numbers(1 << 18, 0)).unwrap_err();
    assert_eq!(error.driver().unwrap().code(), CUresult::ERROR_ILLEGAL_ADDRESS);
}
