//! Tests of a limit that the heaps of several devices share.

use std::time::Duration;

use gpuheap::emu::{Options, Profile, Schedule};
use gpuheap::{Block, Cause, Device, Heap, PoolKind, Stream, TotalLimit};
use gpuheap_driver::CUresult;
use proptest::prelude::*;

use crate::failing::{fail_each_call, with_failing_call};
use crate::support::allocate_filled;

const MIB: u64 = 1 << 20;
/// Pools that a total limit counts.
const COUNTED: [PoolKind; 4] =
    [PoolKind::None, PoolKind::Simple, PoolKind::Split, PoolKind::Stitched];

/// Several devices of one driver. Each has a heap, and the heaps share one limit.
struct Machine {
    limit: TotalLimit,
    devices: Vec<Device>,
    heaps: Vec<Heap>,
    streams: Vec<Stream>,
}

impl Machine {
    fn new(devices: usize, pool: PoolKind, bytes: u64) -> Machine {
        Machine::scheduled(devices, pool, bytes, Schedule::Seeded(1))
    }

    fn scheduled(devices: usize, pool: PoolKind, bytes: u64, schedule: Schedule) -> Machine {
        let profile = || Profile::with_memory(256 * MIB).without_context();
        let devices = (0..devices).map(|_| profile()).collect();
        let options = Options { devices, schedule, ..Options::default() };
        let devices = Device::emulated_devices(options).unwrap();
        let limit = TotalLimit::new(bytes);
        let heap = |device| Heap::builder(device).pool(pool).total_limit(limit.clone()).build();
        let heaps = devices.iter().map(|device| heap(device).unwrap()).collect();
        let streams = devices.iter().map(|device| device.stream().unwrap()).collect();
        Machine { limit, devices, heaps, streams }
    }

    fn allocate(&self, at: usize, bytes: u64) -> Result<Block, gpuheap::Error> {
        self.heaps[at].allocate(bytes, &self.streams[at])
    }

    /// Returns the bytes that the heaps took on all devices. Asserts that the limit counts as many,
    /// and that they are within the limit.
    fn taken(&self) -> u64 {
        let emulator = self.devices[0].emulator().unwrap();
        let usages = self.devices.iter().map(|device| emulator.usage(device.ordinal()));
        let taken = usages.map(|usage| usage.plain + usage.vmm).sum();
        assert_eq!(self.limit.reserved(), taken);
        assert!(taken <= self.limit.bytes(), "{taken}");
        taken
    }
}

#[test]
fn other_devices_give_cached_memory_back() {
    for (pool, devices) in COUNTED.into_iter().flat_map(|pool| [(pool, 2), (pool, 8)]) {
        let machine = Machine::new(devices, pool, 128 * MIB);
        for at in (0..devices).chain(0..devices) {
            assert!(machine.heaps[at].would_fit(100 * MIB).unwrap().is_yes(), "{pool}");
            drop(machine.allocate(at, 100 * MIB).unwrap());
            drop(machine.allocate(at, 1000).unwrap());
            machine.taken();
        }
        drop(machine.heaps);
        assert_eq!(machine.limit.reserved(), 0);
    }
}

#[test]
fn request_waits_for_no_other_device() {
    let lag = Schedule::Lag(Duration::from_secs(1));
    let machine = Machine::scheduled(2, PoolKind::Stitched, 128 * MIB, lag);
    drop(allocate_filled(&machine.heaps[1], 100 * MIB, 1, &machine.streams[1]));
    let error = machine.allocate(0, 100 * MIB).unwrap_err();
    assert_eq!(error.out_of_memory().unwrap().cause, Cause::TotalLimit);
    machine.streams[1].synchronize().unwrap();
    drop(machine.allocate(0, 100 * MIB).unwrap());
}

#[test]
fn full_limit_error_lists_each_device() {
    let machine = Machine::new(2, PoolKind::Stitched, 96 * MIB);
    let live = [machine.allocate(0, 40 * MIB).unwrap(), machine.allocate(1, 30 * MIB).unwrap()];
    let error = machine.allocate(1, 50 * MIB).unwrap_err();
    let evidence = error.out_of_memory().unwrap();
    assert_eq!(evidence.cause, Cause::TotalLimit);
    assert_eq!((evidence.limit_short_by, evidence.total_short_by), (0, 24 * MIB));
    let fit = machine.heaps[1].would_fit(50 * MIB).unwrap();
    insta::assert_snapshot!(format!("{error}\n{fit}"));
    let larger = Machine::new(2, PoolKind::Stitched, (96 + 24) * MIB);
    let same = [larger.allocate(0, 40 * MIB).unwrap(), larger.allocate(1, 30 * MIB).unwrap()];
    drop(larger.allocate(1, 50 * MIB).unwrap());
    let error = machine.allocate(0, 66 * MIB).unwrap_err();
    assert_eq!(error.out_of_memory().unwrap().total_short_by, 40 * MIB, "{error}");
    drop((live, same));
    drop(machine.allocate(1, 50 * MIB).unwrap());
}

#[test]
fn both_limits_have_to_be_raised() {
    let machine = Machine::new(2, PoolKind::Stitched, 96 * MIB);
    let builder = Heap::builder(&machine.devices[0]).total_limit(machine.limit.clone());
    let heap = builder.hard_limit(32 * MIB).build().unwrap();
    let _live = machine.allocate(1, 80 * MIB).unwrap();
    let error = heap.allocate(40 * MIB, &machine.streams[0]).unwrap_err();
    let evidence = error.out_of_memory().unwrap();
    assert_eq!((evidence.limit_short_by, evidence.total_short_by), (8 * MIB, 24 * MIB), "{error}");
    let fit = heap.would_fit(40 * MIB).unwrap();
    insta::assert_snapshot!(format!("{error}\n{fit}"));
}

#[test]
fn reset_device_leaves_total() {
    let machine = Machine::new(2, PoolKind::Stitched, 96 * MIB);
    let live = machine.allocate(0, 60 * MIB).unwrap();
    drop(machine.allocate(1, 10 * MIB).unwrap());
    // SAFETY: nothing else uses the emulated device.
    unsafe { machine.devices[0].clone().reset() }.unwrap();
    drop(machine.allocate(1, 80 * MIB).unwrap());
    machine.taken();
    drop(live);
}

/// Runs two devices to their limit. Driver call number `nth` fails with `code`. Returns the number
/// of errors, and `true` if the run made that call.
fn run_to_limit(pool: PoolKind, nth: u64, code: CUresult) -> (usize, bool) {
    let machine = Machine::new(2, pool, 40 * MIB);
    let emulator = machine.devices[0].emulator().unwrap();
    let (errors, got_there) = with_failing_call(emulator, nth, code, || {
        let first = machine.allocate(0, 16 * MIB);
        let second = machine.allocate(1, 16 * MIB);
        drop(first);
        let third = machine.allocate(1, 16 * MIB);
        let fourth = machine.allocate(0, 16 * MIB);
        [second, third, fourth].iter().filter(|block| block.is_err()).count()
    });
    drop(machine.allocate(0, 36 * MIB).unwrap());
    machine.taken();
    for heap in &machine.heaps {
        heap.reclaim_all().unwrap();
    }
    assert_eq!(machine.taken(), 0, "{pool}, {code:?} at call {nth}");
    let failed: u64 =
        machine.heaps.iter().map(|heap| heap.usage().unwrap().stats.failed_frees).sum();
    (errors + failed as usize, got_there)
}

#[test]
fn failing_call_keeps_total_exact() {
    for pool in COUNTED {
        for code in [CUresult::ERROR_OUT_OF_MEMORY, CUresult::ERROR_UNKNOWN] {
            let (undisturbed, _) = run_to_limit(pool, 0, code);
            let (failed, recovered) = fail_each_call(|nth| {
                let (errors, got_there) = run_to_limit(pool, nth, code);
                (errors > undisturbed, got_there)
            });
            assert!(failed + recovered > 10, "{pool}, {code:?}: {failed} and {recovered}");
        }
    }
}

proptest! {
    #![proptest_config(gpuheap_pool::testing::cases(48))]
    /// A request succeeds if and only if the live bytes of all devices leave room for it.
    #[test]
    fn requests_follow_naive_sum(
        pool in prop::sample::select(vec![PoolKind::None, PoolKind::Stitched]),
        devices in prop::sample::select(vec![2_usize, 8]),
        calls in prop::collection::vec((0..8_usize, 1..40_u64, any::<bool>()), 1..40),
    ) {
        let machine = Machine::new(devices, pool, 128 * MIB);
        let mut live: Vec<Block> = Vec::new();
        for (at, granules, is_free) in calls {
            if is_free && !live.is_empty() {
                drop(live.swap_remove(granules as usize % live.len()));
                continue;
            }
            let (at, bytes) = (at % devices, granules * 2 * MIB);
            let fits = live.iter().map(Block::bytes).sum::<u64>() + bytes <= 128 * MIB;
            prop_assert_eq!(machine.heaps[at].would_fit(bytes).unwrap().is_yes(), fits);
            let block = machine.allocate(at, bytes);
            prop_assert_eq!(block.is_ok(), fits, "{:?}", block);
            live.extend(block);
            machine.taken();
        }
    }
}
