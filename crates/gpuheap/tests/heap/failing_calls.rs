//! Fails each driver call of a scenario, one call in each run. Every run ends with an error value
//! or a successful retry. Its statistics are exact, and no memory is lost.

use gpuheap::emu::Schedule;
use gpuheap::{Block, Device, Error, Heap, PoolKind, Stream};
use gpuheap_driver::CUresult;

use crate::failing::{assert_errs_or_recovers, with_failing_call};
use crate::support::{assert_all_returned, assert_nothing_live, emulated};

const MIB: u64 = 1 << 20;

/// Runs a heap through growth, reuse, another stream, a shortage, a reclaim and a stream's end.
fn scenario(device: &Device, heap: &Heap, streams: &[Stream; 2], errors: &mut Vec<Error>) {
    let mut note = |result: Result<Block, Error>| result.map_err(|error| errors.push(error)).ok();
    let [one, two] = streams;
    let small = note(heap.allocate(1000, one));
    let large = note(heap.allocate(14 * MIB, one));
    drop(large);
    let crossed = note(heap.allocate(14 * MIB, two));
    let third = note(heap.allocate(10 * MIB, one));
    drop(crossed);
    let short = note(heap.allocate(24 * MIB, one));
    drop((small, third, short));
    let mut note = |result: Result<(), Error>| {
        let _ = result.map_err(|error| errors.push(error));
    };
    note(heap.reclaim_all().map(|_| ()));
    note(heap.usage().map(|_| ()));
    note(device.synchronize());
}

/// Runs the scenario with one call failing. Returns the number of errors, including errors in
/// destructors, and whether the scenario made that call.
fn run(pool: PoolKind, limited: bool, nth: u64, code: CUresult) -> (usize, bool) {
    let device = emulated(46 * MIB, Schedule::Seeded(1));
    let emulator = device.emulator().unwrap().clone();
    let mut builder = Heap::builder(&device).pool(pool);
    if limited {
        builder = builder.hard_limit(46 * MIB).soft_limit(20 * MIB);
    }
    let heap = builder.build().unwrap();
    let streams = [(); 2].map(|()| device.stream().unwrap());
    let mut errors = Vec::new();
    let ((), got_there) = with_failing_call(&emulator, nth, code, || {
        scenario(&device, &heap, &streams, &mut errors);
    });

    let what = format!("{pool}, limited {limited}, {code:?} at call {nth}: {errors:?}");
    assert_nothing_live(&heap, &what);
    let failed_frees = heap.usage().unwrap().stats.failed_frees;
    // The heap still allocates afterwards, and in the end all memory is returned.
    drop(heap.allocate(24 * MIB, &streams[0]).unwrap());
    assert_all_returned(&device, &heap, &what);
    drop(heap);
    let used = emulator.usage(0);
    assert_eq!((used.plain, used.pools), (0, 0), "{what}");
    (errors.len() + failed_frees as usize, got_there)
}

/// Fails each call of the scenario in turn, for each kind of pool.
fn sweep(limited: bool) {
    for pool in PoolKind::ALL {
        let (undisturbed, _) = run(pool, limited, 0, CUresult::ERROR_UNKNOWN);
        assert_errs_or_recovers(pool.name(), (0, 1), |nth, code| {
            let (errors, got_there) = run(pool, limited, nth, code);
            (errors > undisturbed, got_there)
        });
    }
}

// In a sweep, each call fails in turn. The sweeps with and without a limit are two tests, so that
// they run at the same time: they take most of this suite's time.

#[test]
fn failing_call_errs_or_recovers() {
    sweep(false);
}

#[test]
fn failing_call_at_limit_recovers() {
    sweep(true);
}
