//! Tests of extreme options of the emulator, and of extreme arguments of its methods.

use std::time::Duration;

use gpuheap::emu::{Emulator, FaultPlan, Kernels, Options, Profile, Schedule};
use gpuheap::{Device, Error, MemoryKind, PoolKind, Stream};

use crate::support::{assert_no_findings, device, heap};

const SCHEDULES: [Schedule; 6] = [
    Schedule::Immediate,
    Schedule::OnDemand,
    Schedule::Seeded(u64::MAX),
    Schedule::Lag(Duration::ZERO),
    Schedule::Lag(Duration::from_nanos(1)),
    Schedule::Lag(Duration::MAX),
];

/// Uses every pool and every kind of memory, and two streams that wait for each other.
fn use_device(device: &Device, pool: PoolKind) -> Result<(), Error> {
    let heap = heap(device, pool);
    let streams: [Stream; 2] = [device.stream()?, device.stream()?];
    let before = streams[0].record_timed()?;
    for kind in [MemoryKind::Device, MemoryKind::Unified, MemoryKind::Pinned] {
        let target = heap.on(&streams[0]).kind(kind);
        let array = target.filled(1000, 3_u8)?;
        assert_eq!(array.to_vec()?, [3; 1000], "{kind}");
        assert!(target.uninit::<u8, _>(usize::MAX).is_err(), "{kind}");
    }
    let after = streams[0].record_timed()?;
    streams[1].wait(&after)?;
    streams[1].synchronize()?;
    while !after.is_done()? {}
    after.elapsed_since(&before)?;
    heap.would_fit(u64::MAX)?;
    heap.memory_status()?;
    heap.flush()?;
    Ok(())
}

#[test]
fn work_succeeds_at_clocks_end() {
    for schedule in SCHEDULES {
        let device = device(1 << 30, schedule);
        let emulator = device.emulator().unwrap();
        let busy = heap(&device, PoolKind::Stitched);
        let target = busy.on(&device.stream().unwrap());
        let early = target.filled(1 << 20, 5_u8).unwrap();
        emulator.set_time(Duration::MAX);
        emulator.advance(Duration::MAX);
        emulator.advance(Duration::ZERO);
        assert_eq!(emulator.time(), Duration::from_nanos(u64::MAX), "{schedule:?}");
        for pool in PoolKind::ALL {
            use_device(&device, pool).unwrap();
        }
        assert_eq!(early.to_vec().unwrap(), [5; 1 << 20], "{schedule:?}");
        emulator.set_time(Duration::ZERO);
        assert_eq!(emulator.time(), Duration::from_nanos(u64::MAX), "it never goes back");
        assert_no_findings(&device, "the clock's end");
    }
}

/// Calls may fail, but none may panic.
#[test]
fn extreme_options_never_panic() {
    let small = || Profile::with_memory(1 << 30);
    let numbers = |number: i32| Profile {
        compute_capability: (number, number),
        multiprocessors: number,
        clock_khz: number,
        memory_clock_khz: number,
        memory_bus_bits: number,
        l2_cache_bytes: number,
        ..small()
    };
    let profiles = [
        Profile::with_memory(u64::MAX),
        Profile::with_memory(u64::MAX).context_bytes(u64::MAX),
        Profile::with_memory(0),
        small().context_bytes(u64::MAX),
        Profile { free_overstated_bytes: u64::MAX, ..small() },
        Profile { late_release_calls: u64::MAX, ..small() },
        Profile { pinned_limit: Some(0), ..small() },
        Profile { pinned_limit: Some(u64::MAX), ..small() },
        Profile { name: "\0".repeat(1000), ..small() },
        numbers(i32::MAX),
        numbers(i32::MIN),
        numbers(0),
    ];
    for profile in profiles {
        for (kernels, driver_version, limit, schedule) in [
            (Kernels::Own, i32::MIN, u64::MAX, Schedule::Lag(Duration::MAX)),
            (Kernels::NoOp, i32::MAX, u64::MAX, Schedule::Seeded(u64::MAX)),
            (Kernels::Own, 13_000, 0, Schedule::Immediate),
        ] {
            let options = Options {
                visible: Some(vec![0, usize::MAX]),
                kernels,
                driver_version,
                schedule,
                faults: FaultPlan::fail_call(0, gpuheap::driver::CUresult::ERROR_UNKNOWN)
                    .out_of_memory_at(limit),
                ..Options::with_device(profile.clone())
            };
            let emulator = Emulator::new(options.clone());
            for number in [i32::MIN, -1, 0, i32::MAX] {
                emulator.usage(number);
            }
            emulator.run_to_idle();
            let Ok(device) = Device::emulated_with(options) else { continue };
            for pool in PoolKind::ALL {
                let _ = use_device(&device, pool);
            }
        }
    }
}
