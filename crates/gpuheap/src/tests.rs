//! Tests that need private parts of the heap and an emulated device. The helper [`failing`] is for
//! tests of other modules.

#[path = "../tests/heap/failing.rs"]
#[expect(dead_code, reason = "shared with the tests of the heap, which use the rest")]
pub(crate) mod failing;

use gpuheap_pool::testing::{IgnoresStreams, fewer};

use crate::emu::{Options, Profile, Schedule};
use crate::source::PlainSource;
use crate::{Device, ErrorKind, Heap, MemoryKind, PoolKind};

/// The emulator reports memory that another stream reuses too early. It reports nothing for the
/// policy `split`, and reports a variant of `split` that ignores streams.
#[test]
fn emulator_reports_policy_that_ignores_streams() {
    for schedule in [Schedule::Immediate, Schedule::Seeded(1), Schedule::OnDemand] {
        for broken in [false, true] {
            let profile = Profile::with_memory(1 << 30).without_context();
            let options = Options { schedule, ..Options::with_device(profile) };
            let device = Device::emulated_with(options).unwrap();
            let heap = if broken {
                let context = device.context().clone();
                let source = Box::new(PlainSource::new(context, MemoryKind::Device));
                let policy = Box::new(IgnoresStreams::default());
                Heap::builder(&device).build_over(PoolKind::Split, (policy, source))
            } else {
                Heap::builder(&device).pool(PoolKind::Split).build().unwrap()
            };
            for _ in 0..2 {
                let stream = device.stream().unwrap();
                let block = heap.allocate(4 << 20, &stream).unwrap();
                let filled = device.with_current(|driver| {
                    // SAFETY: `block` has these 4 MiB until the drop below, and `stream` outlives
                    // it.
                    unsafe { driver.cuMemsetD8Async(block.address(), 1, 4 << 20, stream.raw()) }
                });
                assert!(filled.unwrap().is_success());
                drop(block);
            }
            let findings = device.emulator().unwrap().findings().unwrap();
            assert_eq!(!findings.is_empty(), broken, "{schedule:?}: {findings:?}");
        }
    }
}

/// A program may use many short-lived streams. Slots of ended streams are reused, so that neither
/// memory nor time grows with the number of streams.
#[test]
fn slots_of_ended_streams_are_reused() {
    for pool in PoolKind::ALL {
        let device = Device::emulated(Profile::with_memory(1 << 30)).unwrap();
        let heap = Heap::builder(&device).pool(pool).build().unwrap();
        for _ in 0..fewer(300) {
            let stream = device.stream().unwrap();
            let block = heap.allocate(1 << 20, &stream).unwrap();
            drop(stream);
            drop(block);
            heap.reclaim(1).unwrap();
        }
        assert!(heap.streams() <= 4, "{pool}: {} places for 300 streams", heap.streams());
    }
}

/// A heap forgets ended streams even if no request polls them.
#[test]
fn slots_are_reused_without_memory_pressure() {
    for pool in PoolKind::ALL {
        let device = Device::emulated(Profile::with_memory(1 << 30)).unwrap();
        let heap = Heap::builder(&device).pool(pool).build().unwrap();
        for _ in 0..fewer(300) {
            let stream = device.stream().unwrap();
            drop(heap.allocate(1 << 20, &stream).unwrap());
        }
        assert!(heap.streams() <= 40, "{pool}: {} places for 300 streams", heap.streams());
    }
}

/// The lock is released between the grant and the fill, so the stream can be retired in between.
#[test]
fn zeroing_refuses_stream_retired_after_grant() {
    for pool in PoolKind::ALL {
        for has_successor in [false, true] {
            let device = Device::emulated(Profile::with_memory(1 << 30)).unwrap();
            let heap = Heap::builder(&device).pool(pool).build().unwrap();
            let (stream, next) = (device.stream().unwrap(), device.stream().unwrap());
            let store = heap.store(MemoryKind::Device);
            let lease = store.allocate(5000, &stream, None).unwrap();
            store.retire(&stream).unwrap();
            if has_successor {
                // After the reclaim, the heap gives the ended stream's slot to the stream `next`.
                heap.reclaim_all().unwrap();
                drop(heap.allocate(5000, &next).unwrap());
            }
            let refused = store.zeroed(lease).map(drop).map_err(|error| error.kind());
            assert_eq!(refused, Err(ErrorKind::StreamUnusable), "{pool}, {has_successor}");
            assert_eq!(heap.usage().unwrap().live, 0, "{pool}, {has_successor}");
        }
    }
}
