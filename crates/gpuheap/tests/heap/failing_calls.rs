//! Fails every driver call of a scenario in turn. Each time the result is an error value or a
//! successful retry, the statistics are exact, and nothing is lost.

use gpuheap::emu::Schedule;
use gpuheap::{Block, Device, Error, Heap, PoolKind, Stream};
use gpuheap_driver::CUresult;

use crate::failing::{fail_each_call, with_failing_call};
use crate::support::emulated;

const MIB: u64 = 1 << 20;

/// Runs a heap through growth, reuse, another stream, a shortage, a reclaim and a stream's end.
fn scenario(device: &Device, heap: &Heap, streams: &[Stream; 2], errors: &mut Vec<Error>) {
    let mut note = |result: Result<Block, Error>| result.map_err(|error| errors.push(error)).ok();
    let [one, two] = streams;
    let small = note(heap.allocate(1000, one));
    let large = note(heap.allocate(30 * MIB, one));
    drop(large);
    let crossed = note(heap.allocate(30 * MIB, two));
    let third = note(heap.allocate(20 * MIB, one));
    drop(crossed);
    let short = note(heap.allocate(50 * MIB, one));
    drop((small, third, short));
    let mut note = |result: Result<(), Error>| {
        let _ = result.map_err(|error| errors.push(error));
    };
    note(heap.reclaim_all().map(|_| ()));
    note(heap.usage().map(|_| ()));
    note(device.synchronize());
}

/// Runs the scenario with one call failing. Returns the number of errors, including errors in
/// destructors, and whether the scenario made the call that was to fail.
fn run(pool: PoolKind, limited: bool, nth: u64, code: CUresult) -> (usize, bool) {
    let device = emulated(96 * MIB, Schedule::Seeded(1));
    let emulator = device.emulator().unwrap().clone();
    let mut builder = Heap::builder(&device).pool(pool);
    if limited {
        builder = builder.hard_limit(96 * MIB).soft_limit(40 * MIB);
    }
    let heap = builder.build().unwrap();
    let streams = [(); 2].map(|()| device.stream().unwrap());
    let mut errors = Vec::new();
    let ((), got_there) = with_failing_call(&emulator, nth, code, || {
        scenario(&device, &heap, &streams, &mut errors);
    });

    let what = format!("{pool}, limited {limited}, {code:?} at call {nth}: {errors:?}");
    let usage = heap.usage().unwrap();
    assert_eq!((usage.live, usage.stats.live_allocations), (0, 0), "{what}");
    assert_eq!(usage.stats.allocations, usage.stats.frees, "{what}");
    // A second run works, and in the end all memory is returned.
    drop(heap.allocate(50 * MIB, &streams[0]).unwrap());
    device.synchronize().unwrap();
    heap.reclaim_all().unwrap();
    assert_eq!(heap.usage().unwrap().reserved, 0, "{what}");
    assert_eq!(heap.usage().unwrap().stats.taken, 0, "{what}");
    drop(heap);
    let used = emulator.usage(0);
    assert_eq!((used.plain, used.pools), (0, 0), "{what}");
    assert!(emulator.findings().unwrap().is_empty(), "{what}: {:?}", emulator.findings().unwrap());
    (errors.len() + usage.stats.failed_frees as usize, got_there)
}

/// Fails each call of the scenario in turn, for each kind of pool.
fn sweep(limited: bool) {
    let codes = [CUresult::ERROR_OUT_OF_MEMORY, CUresult::ERROR_UNKNOWN];
    for (pool, code) in PoolKind::ALL.into_iter().flat_map(|pool| codes.map(|code| (pool, code))) {
        let (undisturbed, _) = run(pool, limited, 0, code);
        let (failed, made_good) = fail_each_call(|nth| {
            let (errors, got_there) = run(pool, limited, nth, code);
            (errors > undisturbed, got_there)
        });
        assert!(failed > 0 && made_good > 0, "{pool}, {code:?}: {failed} failed, {made_good} not");
    }
}

// Two tests, because they take most of this suite's time, and run at the same time.

#[test]
fn failing_call_errs_or_recovers() {
    sweep(false);
}

#[test]
fn failing_call_at_limit_recovers() {
    sweep(true);
}
