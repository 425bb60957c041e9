//! Tests of handles to staged arrays. `adapt` stages several arrays before it allocates memory.

use bytemuck::{Pod, Zeroable};
use gpuheap::adapt::Upload;
use gpuheap::emu::Schedule;
use gpuheap::ndarray::{Ix1, SliceInfo, SliceInfoElem};
use gpuheap::{Adapt, Advice, DeviceArray, Element, Error, Host, MemoryKind, PoolKind};

use crate::support::{KINDS, assert_clean, device, heap, heaps};

/// An adapt rule for an array of `self.0` bytes. Calls `self.1` before the array has memory.
struct Early<'a, R>(usize, &'a dyn Fn(DeviceArray<u8>) -> R);

impl<R> Adapt<Upload> for Early<'_, R> {
    type Output = R;

    fn adapt(&self, to: &Upload) -> Result<R, Error> {
        Ok(self.1(vec![5_u8; self.0].adapt(to)?))
    }
}

macro_rules! aligned {
    ($($name:ident $align:literal;)*) => {
        $(
            #[derive(Clone, Copy, Debug, Pod, Zeroable)]
            #[repr(C, align($align))]
            struct $name([u8; $align]);
        )*
    };
}

aligned! { A16 16; A256 256; A512 512; A1024 1024; A4096 4096; }

/// Reads a staged array as elements that need alignment, in three ways, in its own block and in a
/// shared block. Each way returns an error or an aligned array.
fn is_aligned<U: Element>(what: &str) {
    for (device, heap, pool) in heaps(Schedule::Immediate) {
        for kind in KINDS {
            let target = heap.target().unwrap().kind(kind);
            let ways: [&dyn Fn(DeviceArray<u8>) -> Option<DeviceArray<U>>; 3] = [
                &|array| array.into_reinterpreted().ok(),
                &|array| array.into_reinterpreted::<A16>().ok()?.into_reinterpreted().ok(),
                &|array| array.into_slice(size_of::<U>()..).unwrap().into_reinterpreted().ok(),
            ];
            for way in ways {
                let early = Early(2 * size_of::<U>(), way);
                let arrays = target.adapt(&(vec![1_u8; 100], &early, vec![2_u8], &early)).unwrap();
                let alone = target.adapt(&early).unwrap();
                for array in [arrays.1, arrays.3, alone].into_iter().flatten() {
                    let address = array.device_ptr(target.stream()).unwrap();
                    assert_eq!(address % align_of::<U>() as u64, 0, "{what}: {pool}: {kind}");
                    if kind.is_host_accessible() {
                        let start = array.as_slice().unwrap().as_ptr() as usize;
                        assert_eq!(start % align_of::<U>(), 0, "{what}: {pool}: {kind}");
                    }
                    assert_eq!(array.reinterpret::<u8>().unwrap().to_vec().unwrap()[0], 5);
                }
                assert_eq!((arrays.0.to_vec().unwrap()[99], arrays.2.to_vec().unwrap()[0]), (1, 2));
            }
        }
        assert_clean(&device, &heap, what);
    }
}

#[test]
fn reinterpreted_elements_are_aligned() {
    is_aligned::<A16>("16");
    is_aligned::<A256>("256");
    is_aligned::<A512>("512");
    is_aligned::<A1024>("1024");
    is_aligned::<A4096>("4096");
}

#[test]
fn views_of_staged_array_are_checked() {
    let device = device(1 << 30, Schedule::Immediate);
    let heap = heap(&device, PoolKind::Split);
    let target = heap.target().unwrap().kind(MemoryKind::Pinned);
    let early = Early(8192, &|array: DeviceArray<u8>| {
        assert!(array.reinterpret::<A16>().is_ok() && array.reinterpret::<A256>().is_ok());
        assert!(
            array.reinterpret::<A512>().is_err() && array.view().reinterpret::<A4096>().is_err()
        );
        assert!(array.slice(16..).unwrap().reinterpret::<A256>().is_err());
        let shared = array.into_shared();
        let error = shared.clone().into_reinterpreted::<A1024>().unwrap_err();
        assert!(error.to_string().contains("1024"), "{error}");
        shared
    });
    let (first, second, _) = target.adapt(&(&early, &early, vec![1_u8])).unwrap();
    for shared in [first, second] {
        let address = shared.device_ptr(target.stream()).unwrap();
        // `device_ptr` gave the array an address, so the alignment is known from here on.
        let fits = address.is_multiple_of(1024);
        assert_eq!(shared.into_reinterpreted::<A1024>().is_ok(), fits);
    }
    assert_clean(&device, &heap, "views");
}

/// Uses the handle in every way. Each use returns an error or does nothing, and leaves the array
/// unchanged.
fn use_in_every_way(array: &mut DeviceArray<u8>) {
    let others = array.target();
    let mut other = others.filled(array.len(), 8_u8).unwrap();
    let stream = array.stream();
    let length = array.len();
    let mut host = vec![0_u8; length];
    // The macro `s!` needs `unsafe`, so the slice is written out.
    let part = [SliceInfoElem::Slice { start: 0, end: None, step: -1 }];
    let part = SliceInfo::<_, Ix1, Ix1>::try_from(part).unwrap();
    let failed = [
        array.to_vec().map(drop),
        array.to_ndarray().map(drop),
        array.read_into(&mut host),
        array.copy().map(drop),
        array.copy_to(&others).map(drop),
        array.device_ptr(&stream).map(drop),
        array.fill(1),
        array.write_from(&host),
        array.copy_from(&other),
        other.copy_from(array),
        array.as_slice().map(drop),
        array.as_mut_slice().map(drop),
        array.prefetch(gpuheap::Location::Device),
        array.advise(Advice::ReadMostly),
        array.unadvise(Advice::ReadMostly),
        array.add_assign(1),
        other.add_assign(&*array),
        (&*array + 1).map(drop),
        (&other + &*array).map(drop),
        array.equal(1).map(drop),
        array.sum().map(drop),
        array.sum_axis(0).map(drop),
        array.cast::<f32>().map(drop),
        array.copy_slice(&part).map(drop),
        array.write_slice(&part, &other),
        other.write_slice(&part, &*array),
        array.slice(1..).unwrap().to_vec().map(drop),
        array.slice(1..1).unwrap().to_vec().map(drop),
        array.slice_mut(1..).unwrap().fill(3),
        array.reshape((1, length)).unwrap().to_vec().map(drop),
        array.reinterpret::<i8>().unwrap().to_vec().map(drop),
        Host.adapt(array).map(drop),
        others.adapt(array).map(drop),
        others.cu(array).map(drop),
        array.count_by_key(256).map(drop),
    ];
    for (nth, done) in failed.iter().enumerate() {
        let error = done.as_ref().expect_err(&nth.to_string());
        let kind = array.kind();
        let is_about_kind = kind != MemoryKind::Unified && error.to_string().contains("unified");
        assert!(
            error.to_string().contains("use the array that adapt returns") || is_about_kind,
            "{nth}: {error}"
        );
    }
    assert!(!array.is_freed() && !format!("{array:?}").contains('5'));
    assert_eq!(other.to_vec().unwrap(), vec![8; length]);
}

#[test]
fn uses_of_staged_array_err() {
    for (device, heap, pool) in heaps(Schedule::Immediate) {
        for kind in KINDS {
            let target = heap.target().unwrap().kind(kind);
            let early = Early(300, &|mut array: DeviceArray<u8>| {
                use_in_every_way(&mut array);
                array
            });
            let (a, b, c) = target.adapt(&(&early, vec![7_u8; 300], &early)).unwrap();
            for (array, value) in [(&a, 5), (&b, 7), (&c, 5)] {
                assert_eq!(array.to_vec().unwrap(), [value; 300], "{pool}: {kind}");
            }
            assert_eq!(target.adapt(&early).unwrap().to_vec().unwrap(), [5; 300]);
        }
        assert_clean(&device, &heap, pool);
    }
}

/// Each case ends a staged array in another way, for example by a drop, by a free, or on another
/// thread. The block is freed with the last of its arrays.
#[test]
fn ends_of_staged_array_free_memory() {
    for (device, heap, pool) in heaps(Schedule::Immediate) {
        for kind in KINDS {
            let target = heap.target().unwrap().kind(kind);
            let ends: [&dyn Fn(DeviceArray<u8>); 8] = [
                &drop,
                &|array| array.free().unwrap(),
                &|array| drop(array.release().unwrap_err()),
                &|array| assert!(array.into_shared().free_early().unwrap()),
                &|array| drop(array.unregister().unwrap_err()),
                &|array| drop((array * 2).unwrap_err()),
                &|array| std::thread::spawn(|| drop(array)).join().unwrap(),
                &|array| {
                    let shared = array.into_shared();
                    let other = shared.clone();
                    assert!(shared.free_early().unwrap() && !other.free_early().unwrap());
                    assert!(other.to_vec().unwrap_err().is_freed());
                },
            ];
            for end in ends {
                let early = Early(300, end);
                let (_, kept, _) = target.adapt(&(&early, vec![7_u8; 300], &early)).unwrap();
                assert_eq!(kept.to_vec().unwrap(), [7; 300], "{pool}: {kind}");
                target.adapt(&early).unwrap();
                assert_eq!(kept.to_vec().unwrap(), [7; 300], "{pool}: {kind}");
            }
            // The scope ends before the array has memory.
            let scoped = Early(300, &|array: DeviceArray<u8>| {
                let (inner, report) = heap.thread_scope(|_| target.filled(300, 4_u8).unwrap());
                assert!(inner.is_freed() && report.freed == 1);
                array
            });
            let (_, report) = heap.scope(|scope| {
                let target = scope.target().unwrap().kind(kind);
                std::mem::forget(target.adapt(&(&scoped, vec![1_u8])).unwrap());
            });
            assert_eq!(report.freed, 2, "{pool}: {kind}");
        }
        assert_clean(&device, &heap, pool);
    }
}

/// A rule that skips the arrays for which memory is short.
struct Optional(Vec<Vec<u8>>);

impl Adapt<Upload> for Optional {
    type Output = Vec<Option<DeviceArray<u8>>>;

    fn adapt(&self, to: &Upload) -> Result<Self::Output, Error> {
        Ok(self.0.iter().map(|one| one.adapt(to).ok()).collect())
    }
}

/// All arrays that `adapt` returns have memory, even if a rule ignores an error of one upload.
#[test]
fn arrays_are_there_when_adapt_returned() {
    for pool in PoolKind::ALL {
        let heap = heap(&device(64 << 20, Schedule::Immediate), pool);
        let target = heap.target().unwrap();
        let fill = || target.uninit::<u8, _>(512 << 10).ok();
        let mut hog: Vec<_> = std::iter::from_fn(fill).collect();
        drop(hog.pop());
        match target.adapt(&Optional(vec![vec![7; 16 << 10]; 90])) {
            Ok(made) => {
                assert!(made.iter().flatten().all(|array| array.to_vec().is_ok()), "{pool}")
            }
            Err(error) => assert!(error.out_of_memory().is_some(), "{pool}: {error}"),
        }
        // This rule ignores no error.
        drop(hog);
        assert!(target.adapt(&vec![vec![7_u8; 16 << 10]; 90]).is_ok(), "{pool}");
    }
}
