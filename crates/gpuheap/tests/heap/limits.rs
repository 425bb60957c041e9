//! Tests of limits, and of the errors of requests that cannot be served.

use gpuheap::emu::Schedule;
use gpuheap::{Cause, Heap, Limits, PoolKind};
use gpuheap_driver::check;

use crate::support::{assert_all_returned, device, emulated, fill, heap};

const MIB: u64 = 1 << 20;

#[test]
fn hard_limit_holds_and_changes() {
    for pool in PoolKind::ALL {
        let device = device(1 << 30, Schedule::Seeded(1));
        let builder = gpuheap::Heap::builder(&device).pool(pool);
        let heap = builder.hard_limit(128 * MIB).build().unwrap();
        let stream = device.stream().unwrap();
        let first = heap.allocate(100 * MIB, &stream);
        if pool == PoolKind::Binned {
            // The request is rounded up to a power of two, 128 MiB, and just fits the limit.
            assert_eq!(first.as_ref().unwrap().block_bytes(), 128 * MIB);
        }
        let first = first.unwrap();
        let error = heap.allocate(64 * MIB, &stream).unwrap_err();
        let evidence = error.out_of_memory().unwrap();
        assert_eq!(evidence.cause, Cause::Limit, "{pool}: {error}");
        assert_eq!(evidence.limit, Some(128 * MIB));
        let short_by = evidence.short_by.unwrap();
        assert!((36 * MIB..=68 * MIB).contains(&short_by), "{pool}: {error}");
        assert!(heap.usage().unwrap().reserved_peak <= 128 * MIB, "{pool}");
        drop(first);
        // The heap gives back its cache for this request, so no manual reclaim is needed.
        drop(heap.allocate(120 * MIB, &stream).unwrap());
        heap.set_limits(Limits { hard: Some(64 * MIB), ..heap.limits() }).unwrap();
        let error = heap.allocate(65 * MIB, &stream).unwrap_err();
        assert_eq!(error.out_of_memory().unwrap().cause, Cause::LargerThanLimit, "{pool}");
        // The figure includes the rounding of the pool and of the driver.
        let short_by = error.out_of_memory().unwrap().short_by.unwrap();
        assert!((MIB..=64 * MIB).contains(&short_by), "{pool}: {error}");
        drop(heap.allocate(60 * MIB, &stream).unwrap());
        assert!(heap.usage().unwrap().reserved <= 64 * MIB, "{pool}");
        assert_all_returned(&device, &heap, pool.name());
    }
}

#[test]
fn soft_above_hard_limit_is_refused() {
    let device = device(1 << 30, Schedule::Immediate);
    let builder = gpuheap::Heap::builder(&device).soft_limit(64 * MIB);
    let error = builder.clone().hard_limit(63 * MIB).build().unwrap_err().to_string();
    let expected = "the soft limit of 64 MiB is above the hard limit of 63 MiB";
    assert!(error.starts_with(expected), "{error}");
    let heap = builder.hard_limit(64 * MIB).build().unwrap();
    let limits = heap.limits();
    let error = heap.set_limits(Limits { hard: Some(63 * MIB), ..limits }).unwrap_err().to_string();
    assert!(error.starts_with(expected), "{error}");
    assert_eq!(heap.limits(), limits);
    assert_all_returned(&device, &heap, "split");
}

#[test]
fn limit_without_room_is_refused() {
    let device = device(1 << 30, Schedule::Immediate);
    let stream = device.stream().unwrap();
    for pool in PoolKind::ALL {
        let least = if pool == PoolKind::Driver { 32 * MIB } else { 2 * MIB };
        let builder = Heap::builder(&device).pool(pool);
        let error = builder.clone().hard_limit(least - 1).build().unwrap_err();
        assert_eq!(error.kind(), gpuheap::ErrorKind::BadSetting);
        let expected = format!("that the {pool} pool takes from the driver at a time");
        assert!(error.to_string().contains(&expected), "{error}");
        // The smallest accepted limit leaves room for a request.
        let heap = builder.hard_limit(least).build().unwrap();
        drop(heap.allocate(MIB, &stream).unwrap());
        heap.reclaim_all().unwrap();
        // `set_limits`, unlike `build`, accepts less than `least`. The pool then takes no memory.
        heap.set_limits(Limits { soft: None, hard: Some(MIB) }).unwrap();
        heap.allocate(1000, &stream).unwrap_err();
        assert_all_returned(&device, &heap, pool.name());
    }
}

/// A reclaim returns as few segments as possible, and of these the smallest that are enough.
#[test]
fn reclaim_returns_little_above_target() {
    for pool in [PoolKind::Simple, PoolKind::Binned, PoolKind::Split, PoolKind::Stitched] {
        let device = emulated(1 << 30, Schedule::Immediate);
        let heap = Heap::builder(&device).pool(pool).thread_cache(0).build().unwrap();
        let stream = device.stream().unwrap();
        let sizes = [64, 32, 16, 128].map(|mib| mib * MIB);
        let blocks = sizes.map(|bytes| heap.allocate(bytes, &stream).unwrap());
        blocks.into_iter().for_each(drop);
        assert_eq!(
            heap.reclaim(15 * MIB).unwrap(),
            16 * MIB,
            "{pool}: the smallest that covers it"
        );
        let reclaimed = heap.reclaim(140 * MIB).unwrap();
        assert_eq!(reclaimed, if pool == PoolKind::Stitched { 140 } else { 160 } * MIB, "{pool}");
        assert_all_returned(&device, &heap, pool.name());
    }
}

#[test]
fn soft_limit_returns_completed_memory() {
    for pool in [PoolKind::Simple, PoolKind::Binned, PoolKind::Split, PoolKind::Stitched] {
        let device = device(1 << 30, Schedule::OnDemand);
        let builder = gpuheap::Heap::builder(&device).pool(pool);
        let heap = builder.soft_limit(64 * MIB).build().unwrap();
        let stream = device.stream().unwrap();
        let blocks: Vec<_> = (0..8).map(|_| heap.allocate(32 * MIB, &stream).unwrap()).collect();
        assert!(heap.usage().unwrap().reserved >= 256 * MIB, "{pool}: live memory may exceed it");
        drop(blocks);
        device.synchronize().unwrap();
        assert!(heap.usage().unwrap().reserved <= 64 * MIB, "{pool}: {:?}", heap.usage());
        assert_all_returned(&device, &heap, pool.name());
    }
}

#[test]
fn free_above_soft_limit_returns_memory() {
    for pool in [PoolKind::Simple, PoolKind::Binned, PoolKind::Split, PoolKind::Stitched] {
        let device = emulated(1 << 30, Schedule::Immediate);
        let builder = gpuheap::Heap::builder(&device).pool(pool);
        let heap = builder.soft_limit(64 * MIB).build().unwrap();
        let stream = device.stream().unwrap();
        let blocks: Vec<_> = (0..8).map(|_| heap.allocate(32 * MIB, &stream).unwrap()).collect();
        drop(blocks);
        // The figures are read from the device, because reading the heap's figures also enforces
        // the limit.
        let usage = device.emulator().unwrap().usage(0);
        let used = usage.plain + usage.vmm;
        assert!(used <= 64 * MIB, "{pool}: {used}");
    }
}

/// Memory that several streams free piece by piece is given back when its last piece is freed.
#[test]
fn last_piece_returns_whole_segment() {
    for pool in [PoolKind::Split, PoolKind::Stitched] {
        let device = device(1 << 30, Schedule::OnDemand);
        let builder = gpuheap::Heap::builder(&device).pool(pool);
        let heap = builder.soft_limit(16 * MIB).build().unwrap();
        let streams = [(); 3].map(|()| device.stream().unwrap());
        let sizes = [100 << 10, 3 * MIB, 512, 900 << 10];
        let mut blocks: Vec<_> = (0..400)
            .map(|at| {
                let stream = &streams[at % 3];
                let block = heap.allocate(sizes[at % 4], stream).unwrap();
                fill(&block, at as u8, stream);
                block
            })
            .collect();
        while !blocks.is_empty() {
            // Blocks are freed in scattered order, so that neighbours are freed at different times.
            let at = 7919 % blocks.len();
            blocks.swap_remove(at).free().unwrap();
        }
        device.synchronize().unwrap();
        assert!(heap.usage().unwrap().reserved <= 16 * MIB, "{pool}: {:?}", heap.usage());
        assert_all_returned(&device, &heap, pool.name());
    }
}

#[test]
fn stranded_segment_is_not_lost() {
    use gpuheap::emu::{Fault, FaultPlan};
    use gpuheap_driver::CUresult;
    let device = emulated(1 << 30, Schedule::Immediate);
    let stream = device.stream().unwrap();
    let builder = gpuheap::Heap::builder(&device).pool(PoolKind::Driver);
    let heap = builder.hard_limit(64 * MIB).build().unwrap();
    // Both the query for the limit and the return of the segment fail.
    let faults = [
        Fault::nth("cuMemPoolGetAttribute", 2, CUresult::ERROR_UNKNOWN),
        Fault::nth("cuMemFree_v2", 1, CUresult::ERROR_UNKNOWN),
    ];
    device.emulator().unwrap().set_faults(FaultPlan::new(faults));
    heap.allocate(MIB, &stream).unwrap_err();
    let usage = heap.usage().unwrap();
    assert_eq!((usage.live, usage.stats.taken), (0, MIB));
    assert!(usage.cached >= MIB, "{usage:?}");
    assert_all_returned(&device, &heap, "driver");
}

#[test]
fn impossible_request_reaches_no_driver() {
    for pool in PoolKind::ALL {
        let device = emulated(64 * MIB, Schedule::Immediate);
        let heap = heap(&device, pool);
        let stream = device.stream().unwrap();
        for bytes in [64 * MIB + 1, 1 << 50, u64::MAX - 511, u64::MAX] {
            let error = heap.allocate(bytes, &stream).unwrap_err();
            let evidence = error.out_of_memory().unwrap();
            assert_eq!(evidence.cause, Cause::LargerThanDevice, "{pool}: {error}");
            // Sizes are rounded up to granules, and saturate at the largest number.
            assert!(
                evidence.short_by.unwrap() >= bytes.saturating_sub(66 * MIB),
                "{pool}: {error}"
            );
            assert!(evidence.tried.is_empty());
        }
        let emulator = device.emulator().unwrap();
        let asked =
            emulator.calls_of("cuMemAlloc_v2") + emulator.calls_of("cuMemAllocFromPoolAsync");
        assert_eq!(asked, 0, "{pool}");
        assert_all_returned(&device, &heap, pool.name());
    }
}

#[test]
fn limit_below_driver_step_holds() {
    for pool in PoolKind::ALL {
        let device = device(1 << 30, Schedule::Seeded(3));
        for limit in [10 * MIB, 20 * MIB, 40 * MIB] {
            let heap = gpuheap::Heap::builder(&device).pool(pool).build().unwrap();
            heap.set_limits(Limits { soft: None, hard: Some(limit) }).unwrap();
            let stream = device.stream().unwrap();
            let blocks: Vec<_> = (0..60).map_while(|_| heap.allocate(MIB, &stream).ok()).collect();
            let usage = heap.usage().unwrap();
            assert!(usage.reserved_peak <= limit, "{pool}, {limit}: {usage:?}");
            drop(blocks);
            assert_all_returned(&device, &heap, pool.name());
        }
    }
}

#[test]
fn driver_pool_changes_limits_or_errs() {
    let device = device(1 << 30, Schedule::Immediate);
    let stream = device.stream().unwrap();
    let built = gpuheap::Heap::builder(&device).pool(PoolKind::Driver).hard_limit(64 * MIB);
    let heap = built.build().unwrap();
    let error = heap.set_limits(Limits::default()).unwrap_err().to_string();
    assert!(error.contains("build another heap"), "{error}");
    let heap = crate::support::heap(&device, PoolKind::Driver);
    drop(heap.allocate(128 * MIB, &stream).unwrap());
    device.synchronize().unwrap();
    assert!(heap.usage().unwrap().reserved >= 128 * MIB, "it keeps what is freed");
    heap.set_limits(Limits { soft: Some(MIB), hard: None }).unwrap();
    drop(heap.allocate(128 * MIB, &stream).unwrap());
    device.synchronize().unwrap();
    assert!(heap.usage().unwrap().reserved <= 32 * MIB, "{:?}", heap.usage());
    assert_all_returned(&device, &heap, "driver");
}

#[test]
fn small_request_splits_large_block() {
    let device = emulated(20 * MIB, Schedule::Immediate);
    let heap = heap(&device, PoolKind::Split);
    let stream = device.stream().unwrap();
    let large = heap.allocate(MIB, &stream).unwrap();
    let small = heap.allocate(1000, &stream).unwrap();
    drop((large, small));
    assert_all_returned(&device, &heap, "split");
}

#[test]
fn stream_of_other_device_is_refused() {
    let devices = [(); 2].map(|()| emulated(64 * MIB, Schedule::Immediate));
    let [own, foreign] = [0, 1].map(|n: usize| devices[n].stream().unwrap());
    for pool in PoolKind::ALL {
        let heap = heap(&devices[0], pool);
        let error = heap.allocate(1, &foreign).unwrap_err().to_string();
        assert!(error.contains("use a stream of the heap's own device"), "{error}");
        let block = heap.allocate(MIB, &own).unwrap();
        block.free_on(&foreign).unwrap_err();
        assert_all_returned(&devices[0], &heap, pool.name());
    }
}

#[test]
fn each_cause_shows_evidence_and_remedy() {
    let device = emulated(64 * MIB, Schedule::Immediate);
    let stream = device.stream().unwrap();
    let heap = heap(&device, PoolKind::Split);
    let error = heap.allocate(65 * MIB, &stream).unwrap_err();
    assert_eq!(format!("{error:?}"), error.to_string(), "what main and unwrap show");
    let blocks: Vec<_> = (0..16).map(|_| heap.allocate(4 * MIB - 512, &stream).unwrap()).collect();
    insta::assert_snapshot!("device_full", heap.allocate(6 * MIB, &stream).unwrap_err());
    for (index, block) in blocks.into_iter().enumerate() {
        if index % 2 == 0 {
            drop(block);
        } else {
            // These blocks stay allocated until the error.
            fill(&block, 1, &stream);
            std::mem::forget(block);
        }
    }
    insta::assert_snapshot!("fragmentation", heap.allocate(30 * MIB, &stream).unwrap_err());
    let larger = heap.allocate(100 * MIB, &stream).unwrap_err();
    insta::assert_snapshot!("larger_than_device", larger);
    heap.set_limits(Limits { hard: Some(62 * MIB), soft: None }).unwrap();
    insta::assert_snapshot!("larger_than_limit", heap.allocate(63 * MIB, &stream).unwrap_err());

    let device = emulated(4096 * MIB, Schedule::Immediate);
    let stream = device.stream().unwrap();
    let mut address = 0;
    let hogged = device.with_current(|driver| {
        // SAFETY: the pointer is valid for the call. The end of the device frees the memory.
        unsafe { driver.cuMemAlloc_v2(&mut address, 3000 << 20) }
    });
    check("cuMemAlloc_v2", hogged.unwrap()).unwrap();
    let heap = crate::support::heap(&device, PoolKind::Split);
    insta::assert_snapshot!("foreign", heap.allocate(2000 * MIB, &stream).unwrap_err());
    heap.set_limits(Limits { hard: Some(100 * MIB), soft: None }).unwrap();
    let _live = heap.allocate(90 * MIB, &stream).unwrap();
    insta::assert_snapshot!("limit", heap.allocate(20 * MIB, &stream).unwrap_err());
}

/// A large request takes memory that is set apart for small requests, instead of failing.
#[test]
fn small_block_leaves_limit_to_large() {
    for pool in [PoolKind::Split, PoolKind::Stitched] {
        let device = device(64 << 20, Schedule::Immediate);
        let heap = gpuheap::Heap::builder(&device).pool(pool).hard_limit(5 << 19).build().unwrap();
        let stream = device.stream().unwrap();
        let small = heap.allocate(160, &stream).unwrap();
        let large = heap.allocate(819 << 10, &stream);
        assert!(large.is_ok(), "{pool}: {}", large.unwrap_err());
        drop((small, large));
        assert_all_returned(&device, &heap, pool.name());
    }
}

/// The fitting block was freed before nine blocks that are slightly too small, and is still found.
#[test]
fn fitting_block_is_found_at_limit() {
    const UNIT: u64 = 512;
    for pool in [PoolKind::Split, PoolKind::Stitched] {
        let device = device(1024 * MIB, Schedule::Immediate);
        let heap =
            Heap::builder(&device).pool(pool).thread_cache(0).hard_limit(2 * MIB).build().unwrap();
        let stream = device.stream().unwrap();
        let hold = |units: u64| heap.allocate(units * UNIT, &stream).unwrap();
        let mut kept = vec![hold(129)];
        let fits = hold(193);
        kept.push(hold(129));
        let mut others = Vec::new();
        for _ in 0..9 {
            others.push(hold(192));
            kept.push(hold(129));
        }
        kept.push(hold(4096 - 129 - 193 - 129 - 9 * (192 + 129)));
        fits.free().unwrap();
        others.into_iter().for_each(|block| block.free().unwrap());
        drop(hold(193));
        drop(kept);
        assert_all_returned(&device, &heap, pool.name());
    }
}

#[test]
fn any_number_is_a_slack() {
    for (slack, stitches) in
        [(-1.0, true), (f64::NAN, true), (1e12, false), (1e16, false), (f64::INFINITY, false)]
    {
        // The last size is chosen so that live bytes plus their slack would be small if the sum
        // wrapped at 64 bits.
        for size in [8 * MIB, 14 * MIB, 125 << 16] {
            let device = device(1024 * MIB, Schedule::Immediate);
            let heap = Heap::builder(&device)
                .pool(PoolKind::Stitched)
                .thread_cache(0)
                .slack(slack)
                .build()
                .unwrap();
            let stream = device.stream().unwrap();
            let mut blocks: Vec<_> =
                (0..8).map(|_| Some(heap.allocate(size, &stream).unwrap())).collect();
            blocks.iter_mut().step_by(2).for_each(|block| drop(block.take()));
            let before = heap.usage().unwrap().reserved;
            let large = heap.allocate(4 * size, &stream).unwrap();
            let more = heap.usage().unwrap().reserved - before;
            assert_eq!(more < 3 * size, stitches, "{slack} {size}: {more} bytes more");
            drop((blocks, large));
            assert_all_returned(&device, &heap, &format!("{slack}"));
        }
    }
}

#[test]
fn hard_limit_beyond_memory_is_accepted() {
    for pool in PoolKind::ALL {
        let device = device(1 << 30, Schedule::Immediate);
        let heap = Heap::builder(&device).pool(pool).hard_limit(u64::MAX).build().unwrap();
        drop(heap.allocate(MIB, &device.stream().unwrap()).unwrap());
    }
}
