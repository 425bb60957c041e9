//! Runs a scenario with arithmetic many times. In each run, another driver call fails. Every run
//! ends with an error value or a successful retry. Its statistics are exact, and no memory is lost.

use gpuheap::emu::{Fault, FaultPlan, Schedule};
use gpuheap::{Error, Heap, PoolKind, Stream};
use gpuheap_driver::CUresult;
use ndarray::{array, s};

use crate::failing::{assert_errs_or_recovers, with_failing_call};
use crate::support::{assert_all_returned, assert_nothing_live, emulated, heap};

/// Makes new arrays, reuses their memory, works in place and on two streams, reduces, slices,
/// groups and reads.
fn scenario(heap: &Heap, streams: &[Stream; 2]) -> Result<(), Error> {
    let targets = [heap.on(&streams[0]), heap.on(&streams[1])];
    let mut a = targets[0].array(&array![[1.0_f32, 2.0], [3.0, 4.0]])?;
    let b = targets[1].array(&[10.0_f32, 20.0])?;
    let c = ((&a + &b)? * 2.0)?;
    assert_eq!(c.to_vec()?, [22.0, 44.0, 26.0, 48.0]);
    a.sub_assign(&b)?;
    assert_eq!(a.sum()?, -50.0);
    assert_eq!(a.mean_axis(0)?.to_vec()?, [-8.0, -17.0]);
    let mask = (!c.greater(40.0)?)?;
    assert!(mask.any()? && !mask.all()?);
    let column = c.copy_slice(s![.., 1])?;
    a.write_slice(s![..;-1, 0], &column)?;
    assert_eq!(a.cast::<i16>()?.copy_transposed()?.to_vec()?, [48, 44, -18, -16]);
    let keys = targets[1].array(&[1_u8, 1])?;
    assert_eq!(c.sum_by_key(&keys, 2)?.to_vec()?, [0.0, 0.0, 48.0, 92.0]);
    assert_eq!(c.max()?, 48.0);
    drop(b);
    column.free()
}

/// Runs the scenario with one call failing. Returns whether the scenario failed, and whether it
/// made that call.
fn run(pool: PoolKind, nth: u64, code: CUresult) -> (bool, bool) {
    let device = emulated(96 << 20, Schedule::Seeded(1));
    let emulator = device.emulator().unwrap().clone();
    let heap = heap(&device, pool);
    let streams = [(); 2].map(|()| device.stream().unwrap());
    let (result, got_there) = with_failing_call(&emulator, nth, code, || scenario(&heap, &streams));

    let what = format!("{pool}, {code:?} at call {nth}: {result:?}");
    assert_nothing_live(&heap, &what);
    // A second run works, and in the end all memory and modules are returned.
    scenario(&heap, &streams).unwrap();
    assert_all_returned(&device, &heap, &what);
    drop((heap, streams, device));
    let loads = ["cuModuleLoadData", "cuModuleUnload"].map(|name| emulator.calls_of(name));
    // The failed load counts as a call, but loaded nothing.
    assert!(loads[0] - loads[1] <= 1, "{what}: {loads:?}");
    assert!(emulator.findings().unwrap().is_empty(), "{what}: {:?}", emulator.findings().unwrap());
    (result.is_err(), got_there)
}

#[test]
fn failing_call_errs_or_recovers() {
    for pool in [PoolKind::Split, PoolKind::None] {
        assert_errs_or_recovers(pool.name(), (60, 1), |nth, code| run(pool, nth, code));
    }
}

/// If a kernel does not fit into the device's memory, reclaim steps make room for it.
#[test]
fn loading_runs_the_reclaim_steps() {
    let device = emulated(96 << 20, Schedule::Seeded(1));
    let emulator = device.emulator().unwrap().clone();
    let heap = heap(&device, PoolKind::Split);
    let a = heap.target().unwrap().array(&[1, 2, 3]).unwrap();
    drop(heap.target().unwrap().filled(32 << 20, 1_u8).unwrap());
    let cached = heap.usage().unwrap().cached;
    emulator.set_faults(FaultPlan::new([Fault::nth(
        "cuModuleLoadData",
        1,
        CUresult::ERROR_OUT_OF_MEMORY,
    )]));
    let sum = (&a + 1).unwrap();
    emulator.set_faults(FaultPlan::default());
    assert_eq!(sum.to_vec().unwrap(), [2, 3, 4]);
    assert!(heap.usage().unwrap().cached < cached);
}
