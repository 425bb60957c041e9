//! Sums, counts and means by key.

use gpuheap::arithmetic::{GroupedRows, Key};
use gpuheap::emu::Schedule;
use gpuheap::{DeviceArray, ndarray};
use gpuheap_pool::testing::Random;
use ndarray::{Array1, Array2, Array3, array};

use crate::reference::{Bench, Reference, values};

fn keys<K: Key + TryFrom<u64>>(rows: usize, groups: u64, seed: u64) -> Vec<K> {
    let mut random = Random(seed);
    (0..rows).map(|_| K::try_from(random.below(groups)).ok().unwrap()).collect()
}

/// Converts the keys to indices.
fn places<K: Key + TryInto<usize>>(keys: &[K]) -> Vec<usize> {
    keys.iter().map(|key| (*key).try_into().ok().unwrap()).collect()
}

macro_rules! integers {
    ($($of:ident $sum:ident $key:ident;)*) => {
        mod of {
            use super::*;
            $(
                #[test]
                fn $of() {
                    let bench = Bench::new(Schedule::Seeded(1));
                    let target = bench.target();
                    for (rows, groups) in [(1, 1), (33, 2), (1000, 7), (70_001, 100), (5000, 127)] {
                        let host = values::<$of>(rows, 1);
                        let keys = keys::<$key>(rows, groups as u64, 2);
                        let mut sums = vec![0 as $sum; groups];
                        let mut means = vec![0.0_f64; groups];
                        let mut counts = vec![0_u64; groups];
                        for (value, at) in host.iter().zip(places(&keys)) {
                            sums[at] = sums[at].wrapping_add(*value as $sum);
                            means[at] += *value as f64;
                            counts[at] += 1;
                        }
                        let a = target.array(&host).unwrap();
                        let keys = target.array(&keys).unwrap();
                        assert_eq!(a.sum_by_key(&keys, groups).unwrap().to_vec().unwrap(), sums);
                        assert_eq!(keys.count_by_key(groups).unwrap().to_vec().unwrap(), counts);
                        let found = a.mean_by_key(&keys, groups).unwrap().to_vec().unwrap();
                        let most = <$of>::MAX as f64;
                        for ((found, mean), count) in found.iter().zip(means).zip(counts) {
                            let expected = mean / count as f64;
                            let is_same = (found - expected).abs() <= most * 1e-12;
                            assert!(is_same || count == 0 && found.is_nan(), "{found} {expected}");
                        }
                    }
                    bench.end();
                }
            )*
        }
    };
}

integers! {
    i8 i64 u8;
    i16 i64 i8;
    i32 i64 u16;
    i64 i64 i16;
    isize i64 u32;
    u8 u64 i32;
    u16 u64 u64;
    u32 u64 i64;
    u64 u64 usize;
    usize u64 isize;
}

fn floats<T: Reference + From<i16> + Into<f64>>()
where
    T::Sum: Into<f64>,
    T::Mean: Into<f64>,
{
    let bench = Bench::new(Schedule::Seeded(2));
    let target = bench.target();
    for (rows, columns, groups) in [(500, 1, 3), (1000, 5, 200), (257, 70, 90), (4000, 3, 3000)] {
        let mut random = Random(5);
        let mut next = || T::from(random.below(2001) as i16 - 1000);
        let host = Array2::from_shape_simple_fn((rows, columns), &mut next);
        let keys = keys::<u32>(rows, groups as u64, 3);
        let mut sums = Array2::<f64>::zeros((groups, columns));
        let mut counts = vec![0.0; groups];
        for (row, at) in host.rows().into_iter().zip(places(&keys)) {
            let mut sum = sums.row_mut(at);
            sum += &row.mapv(Into::into);
            counts[at] += 1.0;
        }
        let (a, keys) = (target.array(&host).unwrap(), target.array(&keys).unwrap());
        // The sums are exact in any order of additions.
        let found = a.sum_by_key(&keys, groups).unwrap().to_ndarray().unwrap();
        assert_eq!(found.mapv(Into::into), sums);
        let found = a.mean_by_key(&keys, groups).unwrap().to_ndarray().unwrap();
        for ((at, column), mean) in found.indexed_iter() {
            let (mean, expected): (f64, f64) = ((*mean).into(), sums[[at, column]] / counts[at]);
            let is_near = (mean - expected).abs() <= expected.abs() * 1e-6;
            assert!(is_near || counts[at] == 0.0 && mean.is_nan(), "{mean} {expected}");
        }
    }
    bench.end();
}

#[test]
fn of_f32() {
    floats::<f32>();
}

#[test]
fn of_f64() {
    floats::<f64>();
}

#[test]
fn group_rows_accept_any_axes() {
    let bench = Bench::new(Schedule::Seeded(3));
    let target = bench.target();
    let host = Array3::from_shape_fn((4, 2, 3), |(row, i, j)| (row * 100 + i * 10 + j) as i32);
    let a = target.array(&host).unwrap();
    let keys = target.array(&[1_i8, 0, 1, 1]).unwrap();
    let sums = a.sum_by_key(&keys, 2).unwrap().to_ndarray().unwrap();
    let row = |at: usize| host.index_axis(ndarray::Axis(0), at).mapv(i64::from);
    assert_eq!(sums.index_axis(ndarray::Axis(0), 0), row(1));
    assert_eq!(sums.index_axis(ndarray::Axis(0), 1), row(0) + row(2) + row(3));
    let flags = target.array(&[true, true, false, true]).unwrap();
    assert_eq!(flags.sum_by_key(&keys, 2).unwrap().to_vec().unwrap(), [1, 2]);
    assert_eq!(flags.mean_by_key(&keys, 3).unwrap().to_vec().unwrap()[..2], [1.0, 2.0 / 3.0]);
    // Tests a view of keys that begins at an odd offset.
    let part = flags.slice(1..).unwrap();
    assert_eq!(part.sum_by_key(&keys.slice(1..).unwrap(), 2).unwrap().to_vec().unwrap(), [1, 1]);
    // The result is in the array's kind of memory, although the sums are computed in device memory.
    let pinned = target.kind(gpuheap::MemoryKind::Pinned).copy_of(&keys).unwrap();
    let counts = pinned.count_by_key(2).unwrap();
    assert_eq!((counts.kind(), counts.to_vec().unwrap()), (pinned.kind(), vec![1, 3]));
    assert_eq!(flags.mean_by_key(&pinned, 2).unwrap().kind(), gpuheap::MemoryKind::Device);
    assert_eq!(pinned.sum_by_key(&keys, 2).unwrap().as_slice().unwrap()[..], [0, 3]);
    // Tests arrays without values, without rows, and without groups.
    let narrow = a.reshape((4, 6)).unwrap().copy_slice(ndarray::s![.., 0..0]).unwrap();
    assert_eq!(narrow.sum_by_key(&keys, 2).unwrap().shape(), [2, 0]);
    assert!(narrow.sum_by_key(&keys, 1).is_err());
    let nothing = target.zeroed::<f32, _>((0, 2)).unwrap();
    let no_keys = target.zeroed::<u8, _>(0).unwrap();
    let sums = nothing.sum_by_key(&no_keys, 3).unwrap();
    assert_eq!(sums.to_ndarray().unwrap(), Array2::<f32>::zeros((3, 2)));
    assert!(nothing.mean_by_key(&no_keys, 1).unwrap().to_vec().unwrap()[0].is_nan());
    assert_eq!(nothing.sum_by_key(&no_keys, 0).unwrap().shape(), [0, 2]);
    assert!(no_keys.count_by_key(0).unwrap().is_empty());
    assert!(keys.count_by_key(0).is_err());
    drop((a, keys, flags, narrow, nothing, no_keys, sums, pinned, counts));
    bench.end();
}

#[test]
fn bad_keys_and_lengths_are_refused() {
    let bench = Bench::new(Schedule::Seeded(4));
    let target = bench.target();
    let a = target.array(&array![[1.0_f32], [2.0], [3.0], [4.0]]).unwrap();
    let said = |result: Result<DeviceArray<u64>, gpuheap::Error>| result.unwrap_err().to_string();
    let negative = target.array(&[0_i64, 2, -1, i64::MIN]).unwrap();
    let text = said(negative.count_by_key(3));
    assert!(
        text.contains("2 of 4 keys are not within 0..3, the first of them that of row 2 (-1)"),
        "{text}"
    );
    assert!(a.sum_by_key(&negative, 3).is_err() && a.mean_by_key(&negative, 3).is_err());
    let large = target.array(&[0_u64, u64::MAX, 1 << 32, 1]).unwrap();
    assert!(said(large.count_by_key(2)).contains("2 of 4 keys"));
    assert!(a.sum_by_key(&large, 2).is_err());
    let short = target.array(&[0_u8; 3]).unwrap();
    assert!(a.sum_by_key(&short, 1).unwrap_err().to_string().contains("3 keys for 4 rows"));
    let number = target.array(&ndarray::arr0(1.0_f32).into_dyn()).unwrap();
    assert!(number.sum_by_key(&short, 1).is_err());
    // These are more groups than any memory holds.
    assert!(short.count_by_key(usize::MAX).is_err() && a.sum_by_key(&short, usize::MAX).is_err());
    // The error names the row, also if the bad key is the last of many keys.
    let late = Array1::from_iter((0..100_000).map(|row| u8::from(row == 99_999) * 9));
    let late = target.array(&late).unwrap();
    assert!(said(late.count_by_key(9)).contains("row 99999 (9)"));
    drop((a, negative, large, short, number, late));
    bench.end();
}

#[test]
fn grouped_rows_leave_out_missing() {
    let bench = Bench::new(Schedule::Seeded(9));
    let target = bench.target();
    let (rows, groups) = (5000_usize, 9);
    let keys = keys::<u32>(rows, groups as u64 + 2, 4);
    let mut random = Random(6);
    let values: Vec<f32> = (0..rows)
        .map(|_| if random.below(5) == 0 { f32::NAN } else { random.below(900) as f32 - 400.0 })
        .collect();
    let bits: Vec<u8> = (0..rows.div_ceil(8)).map(|_| random.below(256) as u8).collect();
    let mut left: Vec<Vec<f64>> = vec![Vec::new(); groups];
    for (row, (key, value)) in keys.iter().zip(&values).enumerate() {
        let is_valid = bits[row / 8] >> (row % 8) & 1 == 1;
        if let Some(group) = left.get_mut(*key as usize).filter(|_| is_valid && !value.is_nan()) {
            group.push(f64::from(*value));
        }
    }
    let by = |of: fn(&[f64]) -> f64| left.iter().map(|group| of(group)).collect::<Vec<f64>>();
    let (sums, means) = (by(|all| all.iter().sum()), by(|all| all.iter().sum::<f64>().round()));
    let squares: Vec<f64> = left
        .iter()
        .zip(&means)
        .map(|(group, mean)| group.iter().map(|value| (value - mean).powi(2)).sum())
        .collect();
    {
        let (keys, bits) = (target.array(&keys).unwrap(), target.array(&bits).unwrap());
        let (values, means) = (target.array(&values).unwrap(), target.array(&means).unwrap());
        let grouped = GroupedRows::new(&keys, groups).valid(&bits).unwrap();
        let wide = |found: DeviceArray<f32>| -> Vec<f64> {
            found.to_vec().unwrap().into_iter().map(f64::from).collect()
        };
        let counts = grouped.count(&values).unwrap().to_vec().unwrap();
        assert_eq!(counts, left.iter().map(|group| group.len() as u64).collect::<Vec<u64>>());
        assert_eq!(wide(grouped.sum(&values).unwrap()), sums);
        let least = by(|all| all.iter().copied().fold(f64::INFINITY, f64::min));
        assert_eq!(wide(grouped.min(&values).unwrap()), least);
        let most = by(|all| all.iter().copied().fold(f64::NEG_INFINITY, f64::max));
        assert_eq!(wide(grouped.max(&values).unwrap()), most);
        let found = grouped.squares(&values, &means).unwrap().to_vec().unwrap();
        for (found, expected) in found.iter().zip(&squares) {
            assert!((found - expected).abs() <= expected * 1e-9, "{found} {expected}");
        }
        let short = target.array(&[0_u8]).unwrap();
        assert!(GroupedRows::new(&keys, groups).valid(&short).is_err());
        assert!(grouped.squares(&values, &target.array(&[0.0]).unwrap()).is_err());
        assert!(grouped.count(&short).is_err());
        let taken = values.take(&target.array(&[3_u32, 1, u32::MAX]).unwrap()).unwrap();
        assert_eq!(taken.to_vec().unwrap()[2].to_bits(), 0);
    }
    bench.end();
}
