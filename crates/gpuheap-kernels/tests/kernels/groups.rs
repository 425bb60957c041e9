//! Sums by key.

use gpuheap_kernels::group_sum;

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
    memory.run(&group_sum(T::OF, K::OF, keys.len(), inner, groups, out, values_at, keys_at, bad));
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
