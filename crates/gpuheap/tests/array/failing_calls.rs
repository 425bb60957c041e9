//! Fails each driver call of a scenario with arrays, one call in each run. Every run ends with an
//! error value or a successful retry. The heaps' statistics stay exact, and no memory is lost.

use gpuheap::emu::{Options, Profile, Schedule};
use gpuheap::{Device, Error, Heap, MemoryKind, PoolKind, Stream};
use gpuheap_driver::CUresult;

use crate::failing::{assert_errs_or_recovers, with_failing_call};
use crate::support::{assert_all_returned, assert_nothing_live, heap};

/// Makes, writes, reads, prints and frees arrays, and copies them between streams, kinds and
/// devices.
fn scenario(heaps: &[Heap; 2], streams: &[Stream; 2], far: &Stream) -> Result<(), Error> {
    let targets = [heaps[0].on(&streams[0]), heaps[0].on(&streams[1])];
    let mut a = targets[0].array(&[1.0_f32, 2.0, 3.0])?;
    let b = targets[1].copy_of(&a)?;
    a.slice_mut(1..)?.copy_from(&b.slice(..2)?)?;
    a.device_ptr(&streams[1])?;
    let mut pinned = targets[0].kind(MemoryKind::Pinned).filled(100, [1_u8, 2, 3])?;
    pinned.as_mut_slice()?[0] = [4, 5, 6];
    let up = targets[1].array(&pinned.as_slice()?[..])?;
    assert_eq!(up.slice(..2)?.to_vec()?, [[4, 5, 6], [1, 2, 3]]);
    let over = heaps[1].on(far).copy_of(&a)?;
    a.device_ptr(far)?;
    assert_eq!(a.copy()?.to_vec()?, [1.0, 1.0, 2.0]);
    let shared = over.into_shared();
    let (kept, report) = heaps[0].scope(|scope| -> Result<_, Error> {
        std::mem::forget(scope.on(&streams[0]).filled(5, 1_u64)?);
        scope.on(&streams[1]).copy_of(&shared).map(|array| scope.keep(array))
    });
    let kept = kept?;
    if let Some(error) = report.failed.first() {
        return Err(error.clone());
    }
    assert_eq!(kept.to_vec()?, [1.0, 1.0, 2.0]);
    shared.free_early()?;
    // Makes the other device the last user of the array.
    kept.device_ptr(far)?;
    drop(kept);
    a.free()?;
    b.device_ptr(far)?;
    b.release()?;
    Ok(())
}

/// Runs the scenario with one call failing. Returns whether the scenario failed, and whether it
/// made that call.
fn run(pool: PoolKind, nth: u64, code: CUresult) -> (bool, bool) {
    let profile = || Profile::with_memory(96 << 20).without_context();
    let devices = vec![profile(), profile()];
    let options = Options { devices, schedule: Schedule::Seeded(1), ..Options::default() };
    let devices: [Device; 2] = Device::emulated_devices(options).unwrap().try_into().unwrap();
    let emulator = devices[0].emulator().unwrap().clone();
    let heaps = [heap(&devices[0], pool), heap(&devices[1], pool)];
    let streams = [(); 2].map(|()| devices[0].stream().unwrap());
    let far = devices[1].stream().unwrap();
    let (result, got_there) =
        with_failing_call(&emulator, nth, code, || scenario(&heaps, &streams, &far));

    let what = format!("{pool}, {code:?} at call {nth}: {result:?}");
    for (device, heap) in devices.iter().zip(&heaps) {
        assert_nothing_live(heap, &what);
        // A second run works, and in the end all memory is returned.
        let again = heap.target().unwrap().filled(1 << 20, 1_u8).unwrap();
        assert_eq!(again.to_vec().unwrap(), vec![1; 1 << 20], "{what}");
        drop(again);
        assert_all_returned(device, heap, &what);
    }
    drop(heaps);
    for ordinal in 0..2 {
        let used = emulator.usage(ordinal);
        assert_eq!((used.plain, used.pools), (0, 0), "{what}");
    }
    assert!(emulator.findings().unwrap().is_empty(), "{what}: {:?}", emulator.findings().unwrap());
    (result.is_err(), got_there)
}

#[test]
fn failing_call_errs_or_recovers() {
    for pool in [PoolKind::Split, PoolKind::Binned, PoolKind::Simple] {
        assert_errs_or_recovers(pool.name(), (100, 1), |nth, code| run(pool, nth, code));
    }
}
