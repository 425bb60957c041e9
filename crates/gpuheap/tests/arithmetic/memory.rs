//! Tests arithmetic in every kind of memory and at any offset. Checks the memory that a result
//! takes, and the line that made the result.

use gpuheap::emu::Schedule;
use gpuheap::{DeviceArray, Heap, MemoryKind, Tracking};
use gpuheap_driver::check;
use ndarray::{Array2, array};

use crate::reference::Bench;
use crate::support::{assert_all_returned, device};

const KINDS: [MemoryKind; 3] = [MemoryKind::Device, MemoryKind::Unified, MemoryKind::Pinned];

#[test]
fn arrays_of_every_kind_go_together() {
    let bench = Bench::new(Schedule::OnDemand);
    let target = bench.target();
    let host: Vec<i32> = (0..10_000).collect();
    let sums: Vec<i32> = host.iter().map(|one| one * 2 + 5).collect();
    let make = |kind: MemoryKind| match kind {
        MemoryKind::Registered => target.register(host.clone()).unwrap(),
        kind => target.kind(kind).array(&host).unwrap(),
    };
    let all = KINDS.into_iter().chain([MemoryKind::Registered]);
    for (left, right) in all.clone().flat_map(|left| all.clone().map(move |right| (left, right))) {
        let (a, b) = (make(left), make(right));
        let c = ((&a + &b).unwrap() + 5).unwrap();
        // Registered memory belongs to the program, so the result is in pinned memory.
        let like = if left == MemoryKind::Registered { MemoryKind::Pinned } else { left };
        assert_eq!((c.kind(), c.to_vec().unwrap() == sums), (like, true), "{left} {right}");
        let mut a = a;
        a.sub_assign(&b).unwrap();
        assert!(!a.cast::<bool>().unwrap().any().unwrap());
        a.write_slice(ndarray::s![..;-1], &b).unwrap();
        if a.kind() != MemoryKind::Device {
            // The host reads the array in place, after the kernel has written it.
            assert_eq!(a.as_slice().unwrap()[..2], [9999, 9998]);
        }
        if a.kind() == MemoryKind::Registered {
            assert_eq!(a.unregister().unwrap()[9999], 0);
        }
    }
    bench.end();
}

#[test]
fn wrapped_memory_serves_as_operand() {
    let bench = Bench::new(Schedule::OnDemand);
    let target = bench.target();
    let mut address = 0;
    // SAFETY: `address` is a local variable. The memory is freed at the end of the test.
    let taken =
        bench.device.with_current(|driver| unsafe { driver.cuMemAlloc_v2(&mut address, 4096) });
    check("cuMemAlloc_v2", taken.unwrap()).unwrap();
    // SAFETY: the memory has these bytes and is freed after the arrays' last use.
    let wrap = |from: u64, count: usize| unsafe { target.wrap::<u32, _>(from, count).unwrap() };
    let mut whole = wrap(address, 1000);
    whole.write_from(&(0..1000).collect::<Vec<u32>>()).unwrap();
    assert_eq!((&whole * 2).unwrap().sum().unwrap(), 999_000);
    // The two arrays share bytes, so their sum cannot reuse the memory of the left side.
    let (left, right) = (wrap(address, 999), wrap(address + 4, 999));
    assert_eq!(left.stream().id(), right.stream().id());
    let (sum, used) = bench.allocated(|| (left + &right).unwrap());
    assert_eq!(used.allocations, 1);
    assert_eq!(sum.to_vec().unwrap(), (0..999).map(|n| 2 * n + 1).collect::<Vec<u32>>());
    let mut left = wrap(address, 999);
    assert!(left.add_assign(&right).unwrap_err().to_string().contains("overlaps"));
    assert_eq!(whole.to_vec().unwrap()[..3], [0, 1, 2]);
    left.add_assign(wrap(address, 999)).unwrap();
    assert_eq!(whole.to_vec().unwrap()[..3], [0, 2, 4]);
    drop((whole, left, right, sum));
    bench.device.synchronize().unwrap();
    // SAFETY: the memory was allocated above, and the arrays over it were dropped.
    let freed = bench.device.with_current(|driver| unsafe { driver.cuMemFree_v2(address) });
    check("cuMemFree_v2", freed.unwrap()).unwrap();
    bench.end();
}

#[test]
fn windows_begin_anywhere() {
    fn check<T>(bench: &Bench, of: impl Fn(usize) -> T)
    where
        T: crate::reference::Reference + PartialEq + std::fmt::Debug,
    {
        let host: Vec<T> = (0..3000).map(&of).collect();
        let (a, b) = (bench.target().array(&host).unwrap(), bench.target().array(&host).unwrap());
        for (i, j) in [(0, 1), (1, 0), (1, 1), (3, 5), (7, 2), (15, 15), (16, 17)] {
            for length in [1, 15, 16, 17, 100, 1023, 2049] {
                let (left, right) = (&host[i..i + length], &host[j..j + length]);
                let (x, y) = (a.slice(i..i + length).unwrap(), b.slice(j..j + length).unwrap());
                let expected: Vec<T> = left.iter().zip(right).map(|(x, y)| x.plus(*y)).collect();
                assert_eq!((&x + &y).unwrap().to_vec().unwrap(), expected, "{i} {j} {length}");
                let equal: Vec<bool> = left.iter().zip(right).map(|(x, y)| x == y).collect();
                assert_eq!(x.equal(&y).unwrap().to_vec().unwrap(), equal);
                let cast: Vec<f64> = x.cast::<f64>().unwrap().to_vec().unwrap();
                assert_eq!(cast.len(), length);
                // The kernel writes in place, and writes no byte next to the array.
                let mut c = a.copy().unwrap();
                c.slice_mut(i..i + length).unwrap().add_assign(&y).unwrap();
                let found = c.to_vec().unwrap();
                assert_eq!(found[i..i + length], expected);
                assert_eq!((&found[..i], &found[i + length..]), (&host[..i], &host[i + length..]));
            }
        }
    }
    let bench = Bench::new(Schedule::Seeded(4));
    check(&bench, |n| n as u8);
    check(&bench, |n| n as i16);
    check(&bench, |n| n as f32);
    check(&bench, |n| n as i64);
    bench.end();
}

#[test]
fn owned_left_side_reuses_its_memory() {
    let bench = Bench::new(Schedule::Seeded(5));
    let target = bench.target();
    let row = target.array(&[1, 2, 3]).unwrap();
    let table = target.filled((2, 3), 10).unwrap();
    let at = table.device_ptr(target.stream()).unwrap();
    let (table, used) = bench.allocated(|| (table - &row).unwrap());
    assert_eq!((used.allocations, table.device_ptr(target.stream()).unwrap()), (0, at));
    assert_eq!(table.to_ndarray().unwrap(), array![[9, 8, 7], [9, 8, 7]]);
    // The shape grows, so new memory is taken, and the left side's memory is freed.
    let (wide, used) = bench.allocated(|| (row - &table).unwrap());
    assert_eq!(used.allocations, 1);
    assert_eq!(wide.to_ndarray().unwrap(), array![[-8, -6, -4], [-8, -6, -4]]);
    // The result has more axes, and the same number of elements.
    let line = target.array(&[1, 2]).unwrap();
    let (line, used) = bench.allocated(|| (line + &target.array(&array![[5]]).unwrap()).unwrap());
    assert_eq!((used.allocations, line.to_ndarray().unwrap()), (2, array![[6, 7]]));
    // This window is a part of an array, and owns its memory. An operation that consumes the window
    // writes the result to that memory.
    let window = target.array(&[1, 2, 3, 4]).unwrap().into_slice(1..3).unwrap();
    let (window, used) = bench.allocated(|| (window * 5).unwrap());
    assert_eq!((used.allocations, window.to_vec().unwrap()), (0, vec![10, 15]));
    // An operation on a reference does not change the array.
    assert_eq!((&window + 1).unwrap().to_vec().unwrap(), [11, 16]);
    assert_eq!(window.to_vec().unwrap(), [10, 15]);
    let shared = window.into_shared();
    let view = shared.view();
    assert_eq!((&view + &shared).unwrap().to_vec().unwrap(), [20, 30]);
    drop((table, wide, line, shared));
    bench.end();
}

#[test]
fn results_name_caller_and_join_scope() {
    let device = device(1 << 30, Schedule::Seeded(6));
    let heap = Heap::builder(&device).track(Tracking::Counts).build().unwrap();
    let target = heap.target().unwrap();
    let a = target.filled((4, 4), 1.0_f32).unwrap();
    let has = |line: u32| heap.outstanding().unwrap().iter().any(|one| one.at.line() == line);
    macro_rules! made_here {
        ($($make:expr;)*) => {
            $({
                let kept = $make.unwrap();
                assert!(has(line!()), stringify!($make));
                drop(kept);
            })*
        };
    }
    made_here!(&a + &a;);
    made_here!(2.0 * &a;);
    made_here!(a.less(0.5););
    made_here!(a.sum_axis(0););
    made_here!(a.mean_axis(1););
    made_here!(a.copy_slice(ndarray::s![0, ..]););
    made_here!(a.copy_transposed(););
    made_here!(-&a;);
    made_here!(a.cast::<u8>(););
    let ((), report) = heap.scope(|scope| {
        let a = scope.on(target.stream()).filled(100, 1_u8).unwrap();
        std::mem::forget((&a + 1).unwrap());
        std::mem::forget(a.cast::<f32>().unwrap());
    });
    assert_eq!((report.freed, report.failed.len()), (2, 0));
    drop(a);
    assert_all_returned(&device, &heap, "sites");
}

/// Runs several operations on a table, in each kind of memory, and compares their results with
/// `ndarray`.
#[test]
fn a_pipeline() {
    let bench = Bench::new(Schedule::OnDemand);
    let host = Array2::from_shape_fn((300, 40), |(i, j)| (i as f32 - 150.0) * (j as f32 + 0.5));
    for kind in KINDS {
        let a: DeviceArray<f32, _> = bench.target().kind(kind).array(&host).unwrap();
        let means = a.mean_axis(0).unwrap();
        let centred = (&a - &means).unwrap();
        let scaled = (centred / (a.max().unwrap() - a.min().unwrap())).unwrap();
        let mask = scaled.greater(0.0).unwrap();
        let expected = {
            let sums = host.mapv(f64::from).sum_axis(ndarray::Axis(0));
            let means = sums.mapv(|sum| (sum / 300.0) as f32);
            let most = host.iter().copied().fold(f32::MIN, f32::max);
            let least = host.iter().copied().fold(f32::MAX, f32::min);
            (&host - &means).mapv(|one| one / (most - least))
        };
        assert_eq!(scaled.to_ndarray().unwrap(), expected, "{kind}");
        let positive = expected.iter().filter(|one| **one > 0.0).count() as u64;
        assert_eq!(mask.sum().unwrap(), positive, "{kind}");
    }
    bench.end();
}
