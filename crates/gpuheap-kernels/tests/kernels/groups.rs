//! Tests aggregation by key, and copies of rows by index.

use gpuheap_kernels::{ByKey, Fold, group, take};

use crate::support::*;

/// Returns the sums and the bad keys that the kernel finds.
fn summed<T: Native, S: Native, K: Native>(
    values: Option<&[T]>,
    keys: &[K],
    inner: usize,
    groups: usize,
) -> (Vec<S>, [u64; 2]) {
    let mut memory = Plain::default();
    let keys_at = memory.put(keys);
    let values_at = values.map(|values| memory.put(values));
    let out = memory.put(&vec![0_u64; groups * inner]);
    let bad = memory.put(&[0, u64::MAX]);
    let fold = if values.is_some() { Fold::Sum } else { Fold::Count };
    memory.run(&group(&ByKey {
        fold,
        values: values_at.map(|at| (T::OF, at)),
        keys: (K::OF, keys_at),
        rows: keys.len(),
        inner,
        groups,
        out,
        bad: Some(bad),
        valid: None,
        means: 0,
        skips_nan: false,
    }));
    (memory.get(out, groups * inner), memory.get(bad, 2).try_into().unwrap())
}

#[test]
fn rows_add_to_group_of_key() {
    let mut random = Random(1);
    for (rows, inner, groups) in [(1, 1, 1), (10_000, 1, 10), (500, 7, 100), (3000, 3, 5000)] {
        let keys: Vec<i16> = (0..rows).map(|_| random.below(groups as u64) as i16).collect();
        let values: Vec<i32> = (0..rows * inner).map(|_| random.below(1 << 32) as i32).collect();
        let doubles: Vec<f32> = values.iter().map(|value| (value % 1000) as f32).collect();
        let (mut sums, mut totals, mut counts) =
            (vec![0_i64; groups * inner], vec![0.0; groups * inner], vec![0_u64; groups]);
        for (row, key) in keys.iter().enumerate() {
            counts[*key as usize] += 1;
            for column in 0..inner {
                let slot = *key as usize * inner + column;
                sums[slot] += i64::from(values[row * inner + column]);
                totals[slot] += f64::from(doubles[row * inner + column]);
            }
        }
        let none_bad = [0, u64::MAX];
        assert_eq!(summed::<i32, i64, i16>(Some(&values), &keys, inner, groups), (sums, none_bad));
        assert_eq!(
            summed::<f32, f64, i16>(Some(&doubles), &keys, inner, groups),
            (totals, none_bad)
        );
        assert_eq!(summed::<u8, u64, i16>(None, &keys, 1, groups), (counts, none_bad));
    }
}

#[test]
fn keys_out_of_range_are_counted() {
    let values = [1_u8, 2, 3, 4, 5, 6, 7, 8, 9, 10];
    let keys = [0_i64, -1, 2, 3, i64::MIN];
    let found = summed::<u8, u64, i64>(Some(&values), &keys, 2, 3);
    assert_eq!(found, (vec![1, 2, 0, 0, 5, 6], [3, 1]));
    let found = summed::<u8, u64, u64>(None, &[u64::MAX, 1, 1], 1, 2);
    assert_eq!(found, (vec![0, 2], [1, 0]));
    let found = summed::<u8, u64, u8>(None, &[3, 2], 1, 0);
    assert_eq!(found, (vec![], [2, 0]));
}

/// Returns the aggregates of the values whose bit in `valid` is 1.
fn folded<T: Native, S: Native>(
    fold: Fold,
    values: &[T],
    keys: &[u32],
    valid: Option<&[u8]>,
    means: &[f64],
) -> Vec<S> {
    let (mut memory, groups) = (Plain::default(), means.len());
    let [keys_at, out] = [memory.put(keys), memory.put(&vec![fold.identity(T::OF); groups])];
    let by = ByKey {
        fold,
        values: Some((T::OF, memory.put(values))),
        keys: (u32::OF, keys_at),
        rows: keys.len(),
        inner: 1,
        groups,
        out,
        bad: None,
        valid: valid.map(|bits| memory.put(bits)),
        means: memory.put(means),
        skips_nan: true,
    };
    memory.run(&group(&by));
    memory.get(out, groups)
}

#[test]
fn folds_skip_missing_values() {
    let values = [3.0_f32, f32::NAN, -0.0, 0.0, 100.0, -7.5, f32::INFINITY];
    let keys = [0, 0, 1, 1, 2, 0, 9];
    let (valid, means) = ([0b110_1111], [-2.25, 0.0, 1.0]);
    let fold = |fold| folded::<f32, f64>(fold, &values, &keys, Some(&valid), &means);
    assert_eq!(fold(Fold::Sum), [-4.5, 0.0, 0.0]);
    assert_eq!(fold(Fold::Squares), [5.25 * 5.25 * 2.0, 0.0, 0.0]);
    assert_eq!(bits(&fold(Fold::Min)), bits(&[-7.5, -0.0, f64::INFINITY]));
    assert_eq!(bits(&fold(Fold::Max)), bits(&[3.0, 0.0, f64::NEG_INFINITY]));
    let counts: Vec<u64> = folded(Fold::Count, &values, &keys, Some(&valid), &means);
    assert_eq!(counts, [2, 2, 0]);
    let counts: Vec<u64> = folded(Fold::Count, &values, &keys, None, &means);
    assert_eq!(counts, [2, 2, 1]);
}

#[test]
fn integer_extremes_keep_their_sign() {
    let (values, keys, means) = ([-5_i8, 7, -128, 127], [0, 0, 1, 1], [0.0; 3]);
    let least: Vec<i64> = folded(Fold::Min, &values, &keys, None, &means);
    assert_eq!(least, [-5, -128, i64::MAX]);
    let most: Vec<i64> = folded(Fold::Max, &values, &keys, None, &means);
    assert_eq!(most, [7, 127, i64::MIN]);
    let most: Vec<u64> = folded(Fold::Max, &[u64::MAX, 1, 0, 5], &keys, None, &means);
    assert_eq!(most, [u64::MAX, 5, 0]);
}

#[test]
fn take_copies_rows_by_index() {
    let mut memory = Plain::default();
    let (input, out) = (memory.put(&[10_i16, 20, 30]), memory.room::<i16>(4));
    let indices = memory.put(&[2_u32, 0, u32::MAX, 3]);
    memory.run(&take(2, 4, out, input, 3, indices));
    assert_eq!(memory.get::<i16>(out, 4), [30, 10, 0, 0]);
    let (input, out) = (memory.put(&[1_u64, 2, 3, 4]), memory.room::<u64>(4));
    let indices = memory.put(&[1_u32, 0]);
    memory.run(&take(16, 2, out, input, 2, indices));
    assert_eq!(memory.get::<u64>(out, 4), [3, 4, 1, 2]);
    assert!(take(3, 2, out, input, 2, indices).is_empty());
}
