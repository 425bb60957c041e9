//! Small arrays that are uploaded together.

use gpuheap::emu::Schedule;
use gpuheap::{DeviceArray, Host, MemoryKind, PoolKind, Tracking};
use ndarray::Array1;

use crate::support::{assert_all_returned, assert_no_findings, device, make_heap, on_real_gpu};

fn many(count: usize) -> Vec<Array1<u16>> {
    (0..count).map(|n| Array1::from_elem(n % 50 + 1, n as u16)).collect()
}

#[test]
fn ten_thousand_arrays_are_few_calls() {
    let (device, heap) = make_heap(1 << 30, Schedule::Seeded(2), PoolKind::Split);
    let target = heap.target().unwrap();
    let host = many(10_000);
    let before = heap.usage().unwrap().stats.allocations;
    let calls = |name: &str| device.emulator().map_or(0, |emulator| emulator.calls_of(name));
    let copies = calls("cuMemcpyHtoDAsync_v2");
    let up = target.adapt(&host).unwrap();
    // Each array takes 256 bytes, so the 10,000 arrays fit in three blocks.
    assert_eq!(heap.usage().unwrap().stats.allocations - before, 3);
    if !on_real_gpu() {
        assert_eq!(calls("cuMemcpyHtoDAsync_v2") - copies, 3);
    }
    let copies = calls("cuMemcpyDtoHAsync_v2");
    assert_eq!(Host.adapt(&up).unwrap(), host);
    if !on_real_gpu() {
        // The first array of a block is read alone, because a program may need only that array.
        // Each of the three blocks therefore takes two copies.
        assert_eq!(calls("cuMemcpyDtoHAsync_v2") - copies, 6);
    }
    drop(up);
    assert_all_returned(&device, &heap, "many");
}

#[test]
fn each_is_independent_of_the_others() {
    let (device, heap) = make_heap(1 << 30, Schedule::Seeded(9), PoolKind::Split);
    for kind in [MemoryKind::Device, MemoryKind::Pinned, MemoryKind::Unified] {
        let target = heap.target().unwrap().kind(kind);
        let mut up: Vec<DeviceArray<u8>> =
            target.adapt(&(0..10_u8).map(|n| vec![n; 100]).collect::<Vec<_>>()).unwrap();
        for array in &up {
            assert_eq!(array.device_ptr(&array.stream()).unwrap() % 256, 0);
            assert_eq!((array.kind(), array.bytes()), (kind, 100));
        }
        // Arrays are freed one by one, in different ways, while other arrays stay.
        up.remove(3).free().unwrap();
        assert_eq!(up.remove(3).release().unwrap(), 0);
        let shared = up.remove(3).into_shared();
        assert!(shared.free_early().unwrap() && !shared.free_early().unwrap());
        assert!(shared.to_vec().unwrap_err().is_freed());
        let live = |heap: &gpuheap::Heap| {
            let status = heap.memory_status().unwrap();
            match kind {
                MemoryKind::Pinned => status.pinned.allocated,
                MemoryKind::Unified => status.unified.allocated,
                _ => status.allocated,
            }
        };
        let block = live(&heap);
        assert!(block >= 9 * 256 + 100, "{kind}: {block}");
        up[0].fill(77).unwrap();
        let copy = up[4].copy().unwrap();
        up[1].copy_from(&copy).unwrap();
        if kind.is_host_accessible() {
            up[2].as_mut_slice().unwrap()[99] = 55;
            assert_eq!(up[2].as_slice().unwrap()[99], 55);
            up[2].fill(2).unwrap();
        }
        let values = |arrays: &[DeviceArray<u8>]| -> Vec<u8> {
            arrays.iter().map(|array| array.to_vec().unwrap()[0]).collect()
        };
        assert_eq!(values(&up), [77, 7, 2, 6, 7, 8, 9]);
        let down: Vec<u8> = Host.adapt(&up).unwrap().iter().map(|array| array[99]).collect();
        assert_eq!(down, values(&up));
        drop(copy);
        let last = up.pop().unwrap();
        drop(up);
        assert_eq!(live(&heap), block, "{kind}");
        drop(last);
        assert_eq!(live(&heap), 0, "{kind}");
        assert_all_returned(&device, &heap, kind.name());
    }
}

/// If an array was last used on another stream, its download and the free of its block are ordered
/// after that use.
#[test]
fn streams_keep_their_order() {
    for seed in 0..20 {
        let (device, heap) = make_heap(1 << 30, Schedule::Seeded(seed), PoolKind::Split);
        let target = heap.target().unwrap();
        let mut up: Vec<DeviceArray<u8>> =
            target.adapt(&(0..6_u8).map(|n| vec![n; 5000]).collect::<Vec<_>>()).unwrap();
        let streams: Vec<_> = (0..3).map(|_| device.stream().unwrap()).collect();
        for (nth, array) in up.iter_mut().enumerate().skip(2) {
            array.device_ptr(&streams[nth % 3]).unwrap();
            array.fill(nth as u8 + 10).unwrap();
        }
        up[1].fill(11).unwrap();
        drop(up.pop());
        let down: Vec<u8> = Host.adapt(&up).unwrap().iter().map(|array| array[4999]).collect();
        assert_eq!(down, [0, 11, 12, 13, 14], "seed {seed}");
        for array in &mut up {
            array.fill(99).unwrap();
        }
        drop(up);
        // The next array in this memory waits for the last use of each of the arrays.
        let next = target.filled(6 * 5120, 1_u8).unwrap();
        assert_eq!(next.to_vec().unwrap(), vec![1; 6 * 5120], "seed {seed}");
        drop(next);
        assert_all_returned(&device, &heap, "streams");
    }
}

#[test]
fn single_small_array_is_ordinary() {
    let (device, heap) = make_heap(1 << 30, Schedule::OnDemand, PoolKind::None);
    let target = heap.target().unwrap();
    let up = target.adapt(&(vec![1_u8; 5000], 3, Vec::<u8>::new())).unwrap();
    assert_eq!(heap.usage().unwrap().live, 5000);
    assert!(up.0.release().unwrap() >= 5000);
    drop(up.2);
    assert_all_returned(&device, &heap, "one");
}

#[test]
fn scopes_free_and_keep_them() {
    let (device, heap) = make_heap(1 << 30, Schedule::OnDemand, PoolKind::Split);
    let (kept, report) = heap.scope(|scope| {
        let target = scope.target().unwrap();
        let mut up = target.adapt(&vec![vec![1_u8; 10], vec![2; 10], vec![3; 10]]).unwrap();
        let kept = scope.keep(up.remove(1));
        std::mem::forget(up);
        kept
    });
    assert_eq!((report.freed, report.freed_bytes, report.kept.len()), (2, 20, 1));
    assert_eq!(kept.to_vec().unwrap(), [2; 10]);
    drop(kept);
    let (target, _) = heap.scope(|scope| scope.target().unwrap());
    let error = target.adapt(&vec![vec![1_u8]]).unwrap_err().to_string();
    assert!(error.contains("ended"), "{error}");
    assert_all_returned(&device, &heap, "scope");
}

#[test]
fn small_arrays_name_adapt_call_site() {
    let device = device(1 << 30, Schedule::OnDemand);
    let heap = gpuheap::Heap::builder(&device).track(Tracking::Counts).build().unwrap();
    let target = heap.target().unwrap();
    let line = line!() + 1;
    let up = target.adapt(&(vec![vec![1_u8], vec![2]], vec![1_u8; 100_000])).unwrap();
    let leaks = heap.leaks().unwrap();
    assert_eq!((leaks.allocations, leaks.sites.len()), (2, 1), "{leaks}");
    assert!(leaks.to_string().contains(&format!("small_arrays.rs:{line}")), "{leaks}");
    drop(up);
    assert_no_findings(&device, "leaks");
}

/// A program's own `Adapt` may keep an array of an upload that then fails. Using the array errs.
#[test]
fn array_of_failed_adapt_errs() {
    use std::cell::RefCell;

    use gpuheap::adapt::Upload;
    use gpuheap::{Adapt, Error, Target};

    struct Failing(RefCell<Option<DeviceArray<u8>>>, Target);

    impl Adapt<Upload> for Failing {
        type Output = ();

        fn adapt(&self, to: &Upload) -> Result<(), Error> {
            *self.0.borrow_mut() = Some([1_u8, 2].to_vec().adapt(to)?);
            self.1.zeroed::<u8, _>(1 << 50).map(drop)
        }
    }

    let (device, heap) = make_heap(1 << 30, Schedule::OnDemand, PoolKind::Split);
    let target = heap.target().unwrap();
    let failing = Failing(RefCell::default(), target.clone());
    target.adapt(&failing).unwrap_err();
    let error = failing.0.take().unwrap().to_vec().unwrap_err();
    assert!(error.to_string().contains("that is not done or has failed"), "{error}");
    assert_all_returned(&device, &heap, "failed");
}
