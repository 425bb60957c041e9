//! Tests of sums, means, minima and maxima along every axis. Many lengths are just below or above a
//! limit at which the library chooses another kernel.

use gpuheap::arithmetic::Scalar;
use gpuheap::emu::{Profile, Schedule};
use gpuheap::{Device, MemoryKind};
use gpuheap_pool::testing::Random;
use ndarray::{Array1, Array3, Axis, IxDyn};

use crate::reference::{Bench, Reference, assert_same, for_each_number, values};
use crate::support::on_real_gpu;

const LENGTHS: [usize; 17] =
    [1, 2, 3, 31, 32, 33, 255, 256, 257, 1023, 1024, 1025, 8191, 8192, 8193, 16_385, 70_001];

for_each_number!(extremes: extremes_of);

fn extremes_of<T: Reference>() {
    let bench = Bench::new(Schedule::Seeded(1));
    let target = bench.target();
    for length in LENGTHS {
        let mut host = values::<T>(length + 3, length as u64);
        for without_nan in [false, true] {
            host.retain(|one| !(without_nan && one.is_nan()));
            // Tests windows at any offset.
            let a = target.array(&host).unwrap();
            for start in [0, 1, 3] {
                let Some(part) = host.get(start..).filter(|part| !part.is_empty()) else {
                    continue;
                };
                let least = part.iter().copied().reduce(T::lesser).unwrap();
                let greatest = part.iter().copied().reduce(T::greater).unwrap();
                let a = a.slice(start..).unwrap();
                let found = [a.min().unwrap(), a.max().unwrap()];
                assert_same(&found, &[least, greatest], &format!("{length} from {start}"));
            }
        }
    }
    bench.end();
}

#[test]
fn zeros_have_an_order() {
    let bench = Bench::new(Schedule::Seeded(1));
    for host in [[0.0_f32, -0.0], [-0.0, 0.0]] {
        let a = bench.target().array(&host).unwrap();
        let [least, greatest] = [a.min().unwrap(), a.max().unwrap()];
        assert!(least.is_sign_negative() && greatest.is_sign_positive());
    }
    bench.end();
}

macro_rules! integers {
    ($($of:ident as $sum:ident),*) => {
        mod integers {
            use super::*;
            $(
                #[test]
                fn $of() {
                    let bench = Bench::new(Schedule::Seeded(2));
                    for length in LENGTHS {
                        let host = values::<$of>(length, 5);
                        let a = bench.target().array(&host).unwrap();
                        let sum = host.iter().fold(0, |sum: $sum, one| sum.wrapping_add(*one as $sum));
                        assert_eq!(a.sum().unwrap(), sum, "{length}");
                        let mean = host.iter().map(|one| *one as f64).sum::<f64>() / length as f64;
                        let most = host.iter().map(|one| (*one as f64).abs()).fold(0.0, f64::max);
                        let off = (a.mean().unwrap() - mean).abs();
                        assert!(off <= most * 1e-13, "{length}: {off}");
                    }
                    bench.end();
                }
            )*
        }
    };
}

integers!(
    i8 as i64,
    i16 as i64,
    i32 as i64,
    i64 as i64,
    isize as i64,
    u8 as u64,
    u16 as u64,
    u32 as u64,
    u64 as u64,
    usize as u64
);

#[test]
fn floats_are_summed_in_f64() {
    let bench = Bench::new(Schedule::Seeded(3));
    let target = bench.target();
    let mut random = Random(3);
    for length in LENGTHS {
        // Sums of these values are exact in any order, so they show whether each element is counted
        // once.
        let host: Vec<f32> = (0..length).map(|_| random.below(1 << 20) as f32).collect();
        let exact: f64 = host.iter().map(|one| f64::from(*one)).sum();
        let a = target.array(&host).unwrap();
        assert_eq!(a.sum().unwrap(), exact as f32, "{length}");
        assert_eq!(a.mean().unwrap(), (exact / length as f64) as f32, "{length}");
        let wide = a.cast::<f64>().unwrap();
        assert_eq!(wide.sum().unwrap(), exact, "{length}");
        assert_eq!(wide.mean().unwrap(), exact / length as f64, "{length}");
    }
    // An `f32` cannot reach this count by adding ones.
    let ones = target.filled((1 << 24) + 3, 1.0_f32).unwrap();
    assert_eq!(ones.sum().unwrap(), ((1_u64 << 24) + 3) as f32);
    assert_eq!(ones.mean().unwrap(), 1.0);
    // Tests infinities and NaN.
    let odd = target.array(&[f64::INFINITY, 1.0]).unwrap();
    assert_eq!((odd.sum().unwrap(), odd.mean().unwrap()), (f64::INFINITY, f64::INFINITY));
    drop(odd);
    let odd = target.array(&[f64::INFINITY, f64::NEG_INFINITY]).unwrap();
    assert!(odd.sum().unwrap().is_nan() && odd.mean().unwrap().is_nan());
    drop((ones, odd));
    bench.end();
}

#[test]
fn a_mask_is_counted() {
    let bench = Bench::new(Schedule::Seeded(4));
    let host: Vec<bool> = (0..10_001).map(|n| n % 3 == 0).collect();
    let a = bench.target().array(&host).unwrap();
    assert_eq!((a.sum().unwrap(), a.mean().unwrap()), (3334, 3334.0 / 10_001.0));
    let rows = a.slice(..9999).unwrap().into_shape((3, 3333)).unwrap();
    assert_eq!(rows.sum_axis(1).unwrap().to_vec().unwrap(), [1111; 3]);
    assert_eq!(rows.mean_axis(1).unwrap().to_vec().unwrap(), [1.0 / 3.0; 3]);
    drop(a);
    bench.end();
}

#[test]
fn every_axis_of_every_shape() {
    let bench = Bench::new(Schedule::Seeded(5));
    let target = bench.target();
    let mut random = Random(11);
    for n in [1, 2, 31, 32, 33, 255, 256, 257, 300, 1024, 1025, 8193] {
        for (outer, inner) in [(1, 1), (1, 7), (3, 1), (2, 3), (40, 1), (3, 33), (2, 129)] {
            if n * outer * inner > 200_000 {
                continue;
            }
            for (axis, shape) in
                [[n, outer, inner], [outer, n, inner], [outer, inner, n]].into_iter().enumerate()
            {
                let what = format!("{shape:?} along {axis}");
                let host = Array3::from_shape_fn(shape, |_| random.below(4001) as i32 - 2000);
                let a = target.array(&host).unwrap();
                let sums = host.mapv(i64::from).sum_axis(Axis(axis));
                let exact =
                    |array: gpuheap::DeviceArray<f64, ndarray::Ix2>| array.to_ndarray().unwrap();
                assert_eq!(a.sum_axis(axis).unwrap().to_ndarray().unwrap(), sums, "{what}");
                let means = sums.mapv(|sum| sum as f64 / n as f64);
                assert_eq!(exact(a.mean_axis(axis).unwrap()), means, "{what}");
                let lesser = |lane: ndarray::ArrayView1<'_, i32>| *lane.iter().min().unwrap();
                let greater = |lane: ndarray::ArrayView1<'_, i32>| *lane.iter().max().unwrap();
                let least = host.map_axis(Axis(axis), lesser);
                let greatest = host.map_axis(Axis(axis), greater);
                assert_eq!(a.min_axis(axis).unwrap().to_ndarray().unwrap(), least, "{what}");
                assert_eq!(a.max_axis(axis).unwrap().to_ndarray().unwrap(), greatest, "{what}");
                let floats = a.cast::<f32>().unwrap();
                let found = floats.sum_axis(axis).unwrap().to_ndarray().unwrap();
                assert_eq!(found, sums.mapv(|sum| sum as f32), "{what}");
                let found = floats.mean_axis(axis).unwrap().to_ndarray().unwrap();
                assert_eq!(found, means.mapv(|mean| mean as f32), "{what}");
            }
        }
    }
    bench.end();
}

/// Sums of floats are not exact, but equal the emulator's sums to the last bit.
#[test]
fn float_sum_order_is_fixed() {
    let bench = Bench::new(Schedule::Seeded(6));
    let other = Device::emulated(Profile::with_memory(1 << 30)).unwrap().heap().unwrap();
    let targets = [bench.target(), other.target().unwrap()];
    let bits = |host: &[f64]| host.iter().map(|one| one.to_bits()).collect::<Vec<_>>();
    for length in LENGTHS {
        let host: Array1<f64> =
            values::<f64>(length, 9).into_iter().filter(|one| one.is_finite()).collect();
        let host = host.mapv(|one| if one.abs() > 1e100 { 0.1 } else { one });
        let found = targets.each_ref().map(|target| {
            let a = target.array(&host).unwrap();
            let narrow = a.cast::<f32>().unwrap();
            let whole = [a.sum().unwrap(), a.mean().unwrap(), narrow.sum().unwrap().into()];
            let rows = length.min(7);
            let table = a.slice(..host.len() / rows * rows).unwrap();
            let table = table.into_shape((rows, host.len() / rows)).unwrap();
            [
                bits(&whole),
                bits(&table.sum_axis(0).unwrap().to_vec().unwrap()),
                bits(&table.mean_axis(1).unwrap().to_vec().unwrap()),
            ]
        });
        assert_eq!(found[0], found[1], "{length}");
    }
    bench.end();
}

/// Tests a reduction with more partial results than one pass reduces.
#[test]
fn a_large_array_takes_several_passes() {
    let bench = Bench::new(Schedule::Immediate);
    let length = if on_real_gpu() { 300_000_007 } else { 3_000_007 };
    let a = bench.target().filled(length, 1_u8).unwrap();
    assert_eq!((a.sum().unwrap(), a.mean().unwrap()), (length as u64, 1.0));
    assert_eq!(a.sum_axis(0).unwrap().to_vec().unwrap(), [length as u64]);
    let column = a.reshape((length, 1)).unwrap();
    assert_eq!(column.sum_axis(0).unwrap().to_vec().unwrap(), [length as u64]);
    let mut a = a;
    a.slice_mut(length - 1..).unwrap().fill(9).unwrap();
    a.slice_mut(..1).unwrap().fill(0).unwrap();
    assert_eq!((a.min().unwrap(), a.max().unwrap()), (0, 9));
    drop(a);
    bench.end();
}

#[test]
fn empty_sum_is_zero_without_mean() {
    let bench = Bench::new(Schedule::Seeded(7));
    let target = bench.target();
    let empty = target.zeroed::<f32, _>((0, 3, 2)).unwrap();
    assert_eq!(empty.sum().unwrap(), 0.0);
    assert!(empty.mean().is_err() && empty.min().is_err() && empty.max().is_err());
    assert_eq!(
        empty.sum_axis(0).unwrap().to_ndarray().unwrap(),
        ndarray::Array2::<f32>::zeros((3, 2))
    );
    assert_eq!(empty.sum_axis(1).unwrap().shape(), [0, 2]);
    assert_eq!(empty.mean_axis(1).unwrap().shape(), [0, 2]);
    assert_eq!(empty.max_axis(2).unwrap().shape(), [0, 3]);
    assert!(empty.mean_axis(0).is_err() && empty.min_axis(0).is_err());
    assert!(empty.max_axis(0).is_err());
    for axis in [3, usize::MAX] {
        assert!(empty.sum_axis(axis).is_err() && empty.mean_axis(axis).is_err());
        assert!(empty.min_axis(axis).is_err() && empty.max_axis(axis).is_err());
    }
    let number = target.array(&ndarray::arr0(4_i8)).unwrap();
    assert_eq!((number.sum().unwrap(), number.mean().unwrap()), (4, 4.0));
    let none = target.array(&ndarray::arr0(4_i8).into_dyn()).unwrap();
    assert!(none.sum_axis(0).is_err());
    let one = none.reshape(IxDyn(&[1])).unwrap();
    assert_eq!(one.max_axis(0).unwrap().to_ndarray().unwrap(), ndarray::arr0(4).into_dyn());
    drop((empty, number, none));
    bench.end();
}

/// The result is in the array's own kind of memory; partial results are in device memory.
#[test]
fn reductions_allocate_with_their_array() {
    let bench = Bench::new(Schedule::Seeded(8));
    let target = bench.target();
    fn kind<T: Scalar>(array: &gpuheap::DeviceArray<T, ndarray::Ix2>) -> MemoryKind {
        array.sum_axis(0).unwrap().kind()
    }
    for of in [MemoryKind::Device, MemoryKind::Unified, MemoryKind::Pinned] {
        let a = target.kind(of).filled((20_000, 2), 1.5_f32).unwrap();
        assert_eq!((kind(&a), a.mean_axis(0).unwrap().kind()), (of, of));
        assert_eq!(a.sum().unwrap(), 60_000.0);
    }
    bench.end();
}
