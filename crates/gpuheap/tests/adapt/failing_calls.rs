//! Runs a scenario that copies structures of arrays by `adapt`. Each run makes a different driver
//! call fail. Every run ends with an error value or a successful retry. The heap's statistics are
//! exact, and no memory is lost.

use gpuheap::emu::Schedule;
use gpuheap::{DeviceArray, Error, Heap, Host, PoolKind, Stream};
use gpuheap_driver::CUresult;
use ndarray::Array1;

use crate::failing::{assert_errs_or_recovers, with_failing_call};
use crate::support::{assert_all_returned, assert_nothing_live, emulated, heap};

/// Uploads small and large arrays, converts them, uses them on two streams, frees them and copies
/// them back.
fn scenario(heap: &Heap, streams: &[Stream; 2]) -> Result<(), Error> {
    let target = heap.on(&streams[0]);
    let small: Vec<Array1<i64>> = (0..5).map(|n| Array1::from_elem(9, n)).collect();
    let up = target.adapt(&(small.clone(), vec![1_u8; 20_000]))?;
    assert_eq!(Host.adapt(&up)?.0, small);
    let mut up: (Vec<DeviceArray<f32>>, DeviceArray<f32>) =
        target.cu(&(small, vec![1_u16; 20_000]))?;
    up.0[3].device_ptr(&streams[1])?;
    up.0[3].fill(7.0)?;
    up.0.remove(1).free()?;
    let shared = up.0.remove(0).into_shared();
    let same = heap.on(&streams[1]).adapt(&shared)?;
    shared.free_early()?;
    assert!(same.is_freed());
    let down: Vec<f32> = Host.adapt(&up)?.0.iter().map(|array| array[8]).collect();
    assert_eq!(down, [2.0, 7.0, 4.0]);
    Ok(())
}

/// Runs the scenario while driver call number `nth` fails with `code`. Returns whether the scenario
/// failed, and whether it made so many calls.
fn run(pool: PoolKind, nth: u64, code: CUresult) -> (bool, bool) {
    let device = emulated(96 << 20, Schedule::Seeded(1));
    let emulator = device.emulator().unwrap().clone();
    let heap = heap(&device, pool);
    let streams = [(); 2].map(|()| device.stream().unwrap());
    let (result, got_there) = with_failing_call(&emulator, nth, code, || scenario(&heap, &streams));

    let what = format!("{pool}, {code:?} at call {nth}: {result:?}");
    assert_nothing_live(&heap, &what);
    assert_all_returned(&device, &heap, &what);
    (result.is_err(), got_there)
}

#[test]
fn failing_call_errs_or_recovers() {
    for pool in [PoolKind::Split, PoolKind::Simple] {
        assert_errs_or_recovers(pool.name(), (30, 1), |nth, code| run(pool, nth, code));
    }
}
