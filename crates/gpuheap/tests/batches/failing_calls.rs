//! Fails each driver call of a scenario with batches, one call in each run. Every run ends with an
//! error value or a successful retry. The heap's statistics stay exact, and no memory is lost.

use gpuheap::emu::Schedule;
use gpuheap::{Error, Heap, Staging, Target};
use gpuheap_driver::CUresult;
use ndarray::Array2;

use crate::failing::{assert_errs_or_recovers, with_failing_call};
use crate::support::{assert_all_returned, emulated};

const STAGING: Staging = Staging { threads: 1, piece: 32 << 10, slots: 2, threshold: 64 << 10 };

/// Uploads batches and reads them. Returns the first error, if any.
fn scenario(target: &Target, ahead: usize, thread: bool) -> Result<(), Error> {
    let items: Vec<(Vec<u32>, Vec<u8>)> =
        (0..4).map(|nth| (vec![nth; 20_000], vec![nth as u8; 5])).collect();
    let mut first = Ok(());
    let mut check = |nth: usize, batch: Result<(_, _), Error>| {
        let read = batch.and_then(
            |(large, small): (gpuheap::DeviceArray<u32>, gpuheap::DeviceArray<u8>)| {
                assert_eq!(large.to_vec()?, items[nth].0);
                assert_eq!(small.copy()?.to_vec()?, items[nth].1);
                Ok(())
            },
        );
        if first.is_ok() {
            first = read;
        }
    };
    if thread {
        std::thread::scope(|scope| {
            let batches = target.batches(&items).prefetch_on(scope, ahead)?;
            batches.enumerate().for_each(|(nth, batch)| check(nth, batch));
            Ok::<(), Error>(())
        })?;
    } else {
        let batches = target.batches(&items).prefetch(ahead);
        batches.enumerate().for_each(|(nth, batch)| check(nth, batch));
        let data = Array2::from_elem((40, 5000), 3_u32);
        let mut rows = 0;
        for batch in target.batches_by_memory(&data, 0.01)?.prefetch(ahead) {
            let batch = batch?;
            assert_eq!(batch.index(0)?.to_vec()?, vec![3; 5000]);
            rows += batch.shape()[0];
        }
        assert_eq!(rows, 40);
    }
    first
}

fn run(ahead: usize, thread: bool, nth: u64, code: CUresult) -> (bool, bool) {
    let device = emulated(96 << 20, Schedule::Seeded(1));
    let emulator = device.emulator().unwrap().clone();
    let heap = Heap::builder(&device).without_environment().staging(STAGING).build().unwrap();
    let target = heap.target().unwrap();
    let (result, got_there) =
        with_failing_call(&emulator, nth, code, || scenario(&target, ahead, thread));
    let what = format!("{ahead} ahead, thread: {thread}, {code:?} at call {nth}: {result:?}");
    assert_eq!(heap.usage().unwrap().live, 0, "{what}");
    drop(target);
    assert_all_returned(&device, &heap, &what);
    (result.is_err(), got_there)
}

#[test]
fn failing_call_errs_or_recovers() {
    for (ahead, thread) in [(0, false), (1, false), (2, true)] {
        let what = format!("{ahead} ahead, thread: {thread}");
        assert_errs_or_recovers(&what, (50, 1), |nth, code| run(ahead, thread, nth, code));
    }
}
