//! Tests with implementations of public traits that violate the requirements of the traits.

use std::cell::{Cell, RefCell};
use std::ops::{Bound, RangeBounds};
use std::panic::{AssertUnwindSafe, catch_unwind};

use gpuheap::adapt::{Leaf, Upload};
use gpuheap::emu::Schedule;
use gpuheap::ndarray::{Dim, IntoDimension, Ix1, Ix2};
use gpuheap::{Adapt, DeviceArray, Element, Error, HostData, MemoryKind, PoolKind, SharedArray};

use crate::support::{KINDS, Neighbours, assert_clean, device, heap, heaps};

/// Host data that reports the next shape of a list at each call, and the last shape from then on.
/// The number of its elements may match none of the shapes.
struct Liar<'a, T> {
    says: &'a [usize],
    asked: Cell<usize>,
    hands: &'a [T],
}

fn liar<'a, T>(says: &'a [usize], hands: &'a [T]) -> Liar<'a, T> {
    Liar { says, asked: Cell::new(0), hands }
}

impl<T: Element> HostData for Liar<'_, T> {
    type Element = T;
    type Dim = Ix1;

    fn shape(&self) -> Ix1 {
        let nth = self.asked.replace(self.asked.get() + 1);
        Dim(self.says[nth.min(self.says.len() - 1)])
    }

    fn with_elements<R>(&self, work: impl FnOnce(&[T]) -> R) -> R {
        work(self.hands)
    }
}

/// Number of elements of the victim.
const LENGTH: usize = 300;

#[test]
fn host_data_length_mismatch_is_refused() {
    let long = vec![0xaa_u8; 1 << 16];
    for (device, heap, pool) in heaps(Schedule::Immediate) {
        for kind in KINDS {
            let target = heap.target().unwrap().kind(kind);
            let (neighbours, mut victim) =
                Neighbours::around(&target, |target| target.filled(LENGTH, 9_u8).unwrap());
            for count in [0, 1, LENGTH - 1, LENGTH + 1, LENGTH + 700, long.len()] {
                let hands = &long[..count];
                let says = [LENGTH];
                let error = victim.write_from(&liar(&says, hands)).unwrap_err().to_string();
                assert!(error.contains(&count.to_string()), "{error}");
                let whole = &mut victim.view_mut();
                assert!(whole.write_from(&liar(&says, hands)).is_err());
                let fresh = target.uninit::<u8, _>(LENGTH).unwrap();
                assert!(fresh.write_from(&liar(&says, hands)).is_err());
                assert!(target.array(&liar(&says, hands)).is_err());
                assert!(target.adapt(&Leaf(liar(&says, hands))).is_err());
                assert!(target.cu(&(vec![1], Leaf(liar(&says, hands)))).is_err());
                assert!(target.batches([Leaf(liar(&says, hands))]).next().unwrap().is_err());
            }
            neighbours.check(pool);
            assert_eq!(victim.to_vec().unwrap(), [9; LENGTH], "{pool}: {kind}");
            drop((neighbours, victim));
        }
        assert_clean(&device, &heap, pool);
    }
}

#[test]
fn changing_shape_uses_actual_data() {
    let device = device(1 << 30, Schedule::Immediate);
    let heap = heap(&device, PoolKind::Split);
    let hands = [7_u8; 64];
    for kind in KINDS {
        let target = heap.target().unwrap().kind(kind);
        for says in [[64, 1, 1], [1, 64, 64], [64, 64, 1], [64, 1, 64], [usize::MAX, 64, 64]] {
            let (neighbours, made) =
                Neighbours::around(&target, |target| target.array(&liar(&says, &hands)));
            if let Ok(made) = made {
                assert_eq!((made.len(), made.to_vec().unwrap()), (64, vec![7; 64]), "{says:?}");
            }
            neighbours.check("changes");
        }
    }
    assert_clean(&device, &heap, "changes");
}

/// Bytes that another block left in the memory never appear as elements.
#[test]
fn empty_host_data_shows_no_bytes() {
    for (device, heap, pool) in heaps(Schedule::Immediate) {
        for kind in KINDS {
            let target = heap.target().unwrap().kind(kind);
            for _ in 0..4 {
                drop(target.filled(256, 0xaa_u8).unwrap());
                let made = target.array(&liar::<bool>(&[256], &[]));
                assert!(made.is_err(), "{pool}: {kind}: {made:?}");
                let made = target.uninit::<bool, _>(256).unwrap();
                assert!(made.write_from(&liar(&[256], &[true])).is_err());
            }
        }
        assert_clean(&device, &heap, pool);
    }
}

#[test]
fn elements_of_no_size_are_counted() {
    let device = device(1 << 30, Schedule::Immediate);
    let heap = heap(&device, PoolKind::Split);
    let target = heap.target().unwrap().kind(MemoryKind::Pinned);
    assert!(target.array(&liar(&[usize::MAX / 4], &[()])).is_err());
    assert_eq!(target.array(&liar(&[2], &[(), ()])).unwrap().as_slice().unwrap().len(), 2);
    assert_clean(&device, &heap, "no size");
}

/// Host data that panics before or after its elements are taken, or that frees the array that is
/// being written.
enum Saboteur<'a> {
    Shape,
    Before,
    After,
    Frees(&'a SharedArray<u8>),
}

impl HostData for Saboteur<'_> {
    type Element = u8;
    type Dim = Ix1;

    fn shape(&self) -> Ix1 {
        assert!(!matches!(self, Saboteur::Shape), "as planned");
        Dim(LENGTH)
    }

    fn with_elements<R>(&self, work: impl FnOnce(&[u8]) -> R) -> R {
        assert!(!matches!(self, Saboteur::Before), "as planned");
        if let Saboteur::Frees(array) = self {
            array.free_early().unwrap();
        }
        let done = work(&[3; LENGTH]);
        assert!(!matches!(self, Saboteur::After), "as planned");
        done
    }
}

#[test]
fn panicking_host_data_is_contained() {
    for (device, heap, pool) in heaps(Schedule::Immediate) {
        for kind in KINDS {
            let target = heap.target().unwrap().kind(kind);
            let make = |target: &gpuheap::Target| target.filled(LENGTH, 9_u8).unwrap();
            let (neighbours, mut victim) = Neighbours::around(&target, make);
            for saboteur in [Saboteur::Shape, Saboteur::Before, Saboteur::After] {
                let panics = |work: &mut dyn FnMut()| {
                    assert!(catch_unwind(AssertUnwindSafe(work)).is_err(), "{pool}: {kind}");
                };
                panics(&mut || victim.write_from(&saboteur).unwrap());
                panics(&mut || drop(target.array(&saboteur)));
                panics(&mut || drop(target.uninit::<u8, _>(LENGTH).unwrap().write_from(&saboteur)));
                panics(&mut || drop(target.adapt(&(vec![vec![1_u8], vec![2]], Leaf(&saboteur)))));
                let expected = if matches!(saboteur, Saboteur::After) { 3 } else { 9 };
                assert_eq!(victim.to_vec().unwrap(), [expected; LENGTH]);
            }
            let mut handle = victim.into_shared();
            let other = handle.clone();
            assert!(handle.write_from(&Saboteur::Frees(&other)).unwrap_err().is_freed());
            neighbours.check(pool);
            drop((neighbours, handle, other));
        }
        assert_clean(&device, &heap, pool);
    }
}

impl HostData for &Saboteur<'_> {
    type Element = u8;
    type Dim = Ix1;

    fn shape(&self) -> Ix1 {
        (**self).shape()
    }

    fn with_elements<R>(&self, work: impl FnOnce(&[u8]) -> R) -> R {
        (**self).with_elements(work)
    }
}

/// Bounds that differ at each call.
struct Bounds(RefCell<Vec<Bound<usize>>>);

impl Bounds {
    fn next(&self) -> Bound<&usize> {
        let next = self.0.borrow_mut().pop().unwrap_or(Bound::Unbounded);
        next.map(|bound| &*Box::leak(Box::new(bound)))
    }
}

impl RangeBounds<usize> for Bounds {
    fn start_bound(&self) -> Bound<&usize> {
        self.next()
    }

    fn end_bound(&self) -> Bound<&usize> {
        self.next()
    }
}

#[test]
fn ranges_whose_bounds_change_stay_within() {
    let device = device(1 << 30, Schedule::Immediate);
    let heap = heap(&device, PoolKind::Split);
    let target = heap.target().unwrap().kind(MemoryKind::Pinned);
    let (neighbours, mut victim) =
        Neighbours::around(&target, |target| target.filled(LENGTH, 9_u8).unwrap());
    let of = |n: usize| match n % 5 {
        0 => Bound::Unbounded,
        1 => Bound::Included(n),
        2 => Bound::Excluded(n),
        3 => Bound::Included(usize::MAX),
        _ => Bound::Excluded(usize::MAX),
    };
    for seed in 0..10_000_usize {
        let bounds = (0..6).map(|n| of((seed >> (2 * n)) * 37 % (LENGTH + 100))).collect();
        if let Ok(mut part) = victim.slice_mut(Bounds(RefCell::new(bounds))) {
            assert!(part.len() <= LENGTH);
            part.fill(9).unwrap();
        }
    }
    neighbours.check("bounds");
    assert_eq!(victim.to_vec().unwrap(), [9; LENGTH]);
    drop((neighbours, victim));
    assert_clean(&device, &heap, "bounds");
}

/// A shape that differs at each call.
struct Shapes(Cell<usize>);

impl IntoDimension for &Shapes {
    type Dim = Ix2;

    fn into_dimension(self) -> Ix2 {
        let asked = self.0.replace(self.0.get() + 1);
        if asked.is_multiple_of(2) { Ix2(10, 30) } else { Ix2(usize::MAX, 2) }
    }
}

#[test]
fn changing_shape_is_read_once() {
    let device = device(1 << 30, Schedule::Immediate);
    let heap = heap(&device, PoolKind::Split);
    let target = heap.target().unwrap();
    let (neighbours, victim) =
        Neighbours::around(&target, |target| target.filled(LENGTH, 9_u8).unwrap());
    for first in [0, 1] {
        let asks = || Shapes(Cell::new(first));
        let right = first == 0;
        assert_eq!(victim.reshape(&asks()).is_ok(), right);
        let made: Result<DeviceArray<u8, Ix2>, Error> = target.filled(&asks(), 1_u8);
        assert_eq!(made.is_ok(), right);
        assert_eq!(target.uninit::<u64, _>(&asks()).is_ok(), right);
        let row = target.filled(30, 2_u8).unwrap();
        assert_eq!(row.broadcast_to(&asks()).is_ok(), right);
    }
    neighbours.check("shapes");
    drop((neighbours, victim));
    assert_clean(&device, &heap, "shapes");
}

/// An array with an axis of length 0 has no elements. Many operations on it fail nevertheless if
/// the product of its other axes overflows.
#[test]
fn huge_empty_axes_are_errors() {
    let device = device(1 << 30, Schedule::Immediate);
    let heap = heap(&device, PoolKind::Split);
    let target = heap.target().unwrap();
    let empty = target.zeroed::<u32, _>((0, usize::MAX)).unwrap();
    assert!(empty.reinterpret::<u8>().is_err());
    assert!(empty.reinterpret::<i32>().unwrap().is_empty());
    let three = target.zeroed::<u32, _>((0, usize::MAX, 2)).unwrap();
    assert!(three.sum_axis(0).is_err() && three.copy_transposed().is_err());
    assert!(three.slice(1..).is_err() && three.index(0).is_err());
    assert!(three.slice(..).unwrap().to_vec().unwrap().is_empty());
    assert!(three.reshape((usize::MAX, 0)).unwrap().to_vec().unwrap().is_empty());
    assert!(three.reshape((usize::MAX, 2)).is_err());
    assert!(three.reshape((2, usize::MAX, 0)).is_err());
    drop((empty, three));
    assert_clean(&device, &heap, "empty");
}

/// An iterator that reports a wrong number of items, and continues after its end.
struct Odd(usize);

impl Iterator for Odd {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        self.0 += 1;
        (!self.0.is_multiple_of(4)).then(|| vec![self.0 as u8; 100])
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (usize::MAX, Some(self.0))
    }
}

impl ExactSizeIterator for Odd {
    fn len(&self) -> usize {
        usize::MAX
    }
}

#[test]
fn lying_iterators_end_normally() {
    let device = device(1 << 30, Schedule::Immediate);
    let heap = heap(&device, PoolKind::Split);
    let target = heap.target().unwrap();
    for ahead in [0, 1, 9] {
        let mut batches = target.batches(Odd(0)).prefetch(ahead);
        let _ = batches.size_hint();
        // Does not use `collect`: it would reserve memory for the wrong number that `Odd` reports.
        let mut seen = Vec::new();
        for batch in batches.by_ref() {
            seen.push(batch.unwrap().to_vec().unwrap()[99]);
        }
        assert_eq!(seen, [1, 2, 3]);
        assert!(batches.next().is_none());
        let _ = batches.size_hint();
        drop(batches);
        std::thread::scope(|scope| {
            let batches = target.batches(Odd(0)).prefetch_on(scope, ahead).unwrap();
            let _ = batches.size_hint();
            assert_eq!(batches.map(|batch| batch.unwrap().to_vec().unwrap()[0]).sum::<u8>(), 6);
        });
    }
    assert_clean(&device, &heap, "odd");
}

/// An adapt rule that makes a different result each time, keeps its results, and sometimes fails.
struct Fickle<'a>(&'a Cell<usize>, &'a RefCell<Vec<SharedArray<u8>>>);

impl Adapt<Upload> for Fickle<'_> {
    type Output = Vec<SharedArray<u8>>;

    fn adapt(&self, to: &Upload) -> Result<Self::Output, Error> {
        let nth = self.0.replace(self.0.get() + 1);
        let mut made = Vec::new();
        for n in 0..nth % 7 {
            let array = vec![nth as u8; 10 * n + 1].adapt(to)?.into_shared();
            self.1.borrow_mut().push(array.clone());
            made.push(array);
        }
        match nth % 3 {
            0 => Ok(made),
            1 => to.target().uninit::<u8, _>(usize::MAX).map(|_| made),
            _ => panic!("as planned"),
        }
    }
}

#[test]
fn failed_rules_leave_erring_handles() {
    for (device, heap, pool) in heaps(Schedule::Immediate) {
        for kind in KINDS {
            let target = heap.target().unwrap().kind(kind);
            let (asked, leaked) = (Cell::new(0), RefCell::default());
            for _ in 0..21 {
                let fickle = Fickle(&asked, &leaked);
                let adapted = catch_unwind(AssertUnwindSafe(|| target.adapt(&fickle)));
                let made = leaked.take();
                match adapted {
                    Ok(Ok(arrays)) => {
                        assert_eq!(arrays.len(), made.len());
                        assert!(made.iter().all(|array| array.to_vec().is_ok()));
                    }
                    _ => assert!(made.iter().all(|array| array.to_vec().is_err())),
                }
                let mut batches = target.batches([&fickle]);
                let _ = catch_unwind(AssertUnwindSafe(|| batches.next().map(drop)));
                drop(batches);
                assert!(leaked.take().iter().all(|array| array.to_vec().is_err()));
            }
        }
        assert_clean(&device, &heap, pool);
    }
}
