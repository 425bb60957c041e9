//! Tests of frees on a stream other than the block's own, with no order between the two streams.

use gpuheap::emu::{Fault, FaultPlan, Schedule};
use gpuheap::{Block, Device, Heap, PoolKind, Stream};
use gpuheap_driver::CUresult;

use crate::support::{assert_all_returned, device, emulated, on_real_gpu};

const MIB: u64 = 1 << 20;
const COUNT: usize = 4 << 20;

/// Makes a heap with room for two arrays of 4 MiB, so that the last array must reuse the memory of
/// the first.
fn tight(device: &Device, pool: PoolKind) -> Heap {
    let limit = match pool {
        // The driver's own pools grow by 32 MiB.
        PoolKind::None | PoolKind::Driver => 32 * MIB,
        _ => 8 * MIB,
    };
    Heap::builder(device).without_environment().pool(pool).hard_limit(limit).build().unwrap()
}

/// Copies an array on stream `c`, and frees the array there. The next block, on `a`, gets that
/// memory, and `free` frees the block on `b`. Then `b` gets the memory and writes to it. The copy
/// on `c` must still have read the first contents.
fn read_survives(device: &Device, heap: &Heap, what: &str, free: impl FnOnce(Block, &Stream)) {
    let [a, b, c] = [(); 3].map(|()| device.stream().unwrap());
    let x = heap.on(&a).filled(COUNT, 7_u8).unwrap();
    // `x` and this copy fill the limit. So the next block must reuse the memory of `x`.
    let read = x.copy_to(&heap.on(&c)).unwrap();
    let address = x.device_ptr(&c).unwrap();
    drop(x);
    let y = heap.allocate(COUNT as u64, &a).unwrap();
    let is_pooled = !matches!(heap.pool(), PoolKind::None | PoolKind::Driver);
    assert!(!is_pooled || y.address() == address, "{what}: the memory that c reads");
    free(y, &b);
    let z = heap.on(&b).filled(COUNT, 9_u8).unwrap();
    assert!(!is_pooled || z.device_ptr(&b).unwrap() == address, "{what}: the memory that c reads");
    b.synchronize().unwrap();
    let wrong = read.to_vec().unwrap().iter().filter(|byte| **byte != 7).count();
    assert_eq!(wrong, 0, "{what}: bytes of {COUNT} that were overwritten before they were read");
    drop((read, z));
    assert_all_returned(device, heap, what);
}

#[test]
fn free_on_follows_all_orderings() {
    for pool in PoolKind::ALL {
        let device = device(1 << 30, Schedule::OnDemand);
        let heap = tight(&device, pool);
        read_survives(&device, &heap, pool.name(), |block, b| block.free_on(b).unwrap());
    }
}

/// Each driver call of the free fails in turn. The memory must then be reused in the order of the
/// streams, or not at all.
#[test]
fn free_on_orders_despite_failing_call() {
    if on_real_gpu() {
        return;
    }
    for pool in [PoolKind::Simple, PoolKind::Binned, PoolKind::Split, PoolKind::Stitched] {
        for function in ["cuEventCreate", "cuEventRecord", "cuStreamWaitEvent"] {
            let device = emulated(1 << 30, Schedule::OnDemand);
            let heap = tight(&device, pool);
            let emulator = device.emulator().unwrap();
            let what = format!("{pool} {function}");
            read_survives(&device, &heap, &what, |block, b| {
                let fault = Fault::nth(function, 1, CUresult::ERROR_UNKNOWN);
                emulator.set_faults(FaultPlan::new([fault]));
                block.free_on(b).unwrap();
                emulator.set_faults(FaultPlan::default());
            });
        }
    }
}

/// Neither stream can wait for the other, and the host cannot wait for either.
#[test]
fn unorderable_free_on_keeps_block() {
    if on_real_gpu() {
        return;
    }
    let device = emulated(1 << 30, Schedule::OnDemand);
    let heap = tight(&device, PoolKind::Stitched);
    let (a, b) = (device.stream().unwrap(), device.stream().unwrap());
    let block = heap.allocate(MIB, &a).unwrap();
    let emulator = device.emulator().unwrap();
    let faults = ["cuStreamIsCapturing", "cuEventRecord"];
    let all = |function| (1..9).map(move |nth| Fault::nth(function, nth, CUresult::ERROR_UNKNOWN));
    emulator.set_faults(FaultPlan::new(faults.into_iter().flat_map(all)));
    let error = block.free_on(&b).unwrap_err();
    emulator.set_faults(FaultPlan::default());
    assert!(error.driver().is_some(), "{error}");
    let usage = heap.usage().unwrap();
    assert_eq!((usage.live, usage.stats.failed_frees), (MIB, 1));
}

#[test]
fn free_on_own_stream_calls_nothing() {
    if on_real_gpu() {
        return;
    }
    let device = emulated(1 << 30, Schedule::OnDemand);
    let heap = tight(&device, PoolKind::Stitched);
    let a = device.stream().unwrap();
    drop(heap.allocate(MIB, &a).unwrap());
    let block = heap.allocate(MIB, &a).unwrap();
    let before = device.emulator().unwrap().calls();
    block.free_on(&a.clone()).unwrap();
    assert_eq!(device.emulator().unwrap().calls(), before);
}
