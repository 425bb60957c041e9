//! Compares plans of strided work with indices that are computed one by one.

use gpuheap_kernels::{Arithmetic, Operand, Type, arithmetic, cast, copy};
use proptest::prelude::*;

use crate::support::*;

/// Returns the indices of every element, in row-major order.
fn indices(shape: &[usize]) -> Vec<Vec<usize>> {
    shape.iter().fold(vec![vec![]], |all, &length| {
        let longer = |index: Vec<usize>| {
            (0..length).map(move |i| index.iter().copied().chain([i]).collect())
        };
        all.into_iter().flat_map(longer).collect()
    })
}

fn place(index: &[usize], strides: &[isize]) -> isize {
    index.iter().zip(strides).map(|(&i, &stride)| i as isize * stride).sum()
}

/// Returns how far the elements extend before and after the first element.
fn reach(shape: &[usize], strides: &[isize]) -> (usize, usize) {
    let mut reach = (0, 0);
    for (&length, &stride) in shape.iter().zip(strides) {
        let far = length.saturating_sub(1) * stride.unsigned_abs();
        if stride < 0 { reach.0 += far } else { reach.1 += far }
    }
    reach
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn operands_are_found_by_their_strides(
        axes in prop::collection::vec((0_usize..4, -20_isize..20, -20_isize..20, 0..4), 0..11),
    ) {
        let shape: Vec<usize> = axes.iter().map(|axis| axis.0).collect();
        prop_assume!(shape.iter().product::<usize>() < 20_000);
        // Some axes are broadcast.
        let left: Vec<isize> = axes.iter().map(|axis| if axis.3 == 0 { 0 } else { axis.1 }).collect();
        let right: Vec<isize> = axes.iter().map(|axis| if axis.3 == 1 { 0 } else { axis.2 }).collect();
        let mut memory = Plain::default();
        let mut sides = Vec::new();
        for strides in [&left, &right] {
            let (before, behind) = reach(&shape, strides);
            let values: Vec<i64> = (0..(before + behind + 1) as i64).map(|i| i * i + 1).collect();
            let address = memory.put(&values) + 8 * before as u64;
            sides.push((values, before, address));
        }
        let count = shape.iter().product();
        let out = memory.room::<i64>(count);
        let operand = |i: usize, strides| Operand::Array { address: sides[i].2, strides };
        let launches = arithmetic(
            Arithmetic::Subtract, Type::I64, &shape, out, operand(0, &left), operand(1, &right),
        );
        memory.run(&launches);
        let value = |i: usize, index: &[usize], strides: &[isize]| {
            sides[i].0[(sides[i].1 as isize + place(index, strides)) as usize]
        };
        let wanted: Vec<i64> = indices(&shape)
            .iter()
            .map(|index| value(0, index, &left) - value(1, index, &right))
            .collect();
        prop_assert_eq!(memory.get::<i64>(out, count), wanted);
    }

    #[test]
    fn copies_write_only_their_units(
        lengths in prop::collection::vec((1_usize..5, any::<bool>(), -9_isize..9), 0..10),
        unit in prop::sample::select(vec![1_usize, 2, 4, 8, 16]),
        off in 0_usize..3,
        gap in 0_isize..3,
        order in any::<u64>(),
    ) {
        let shape: Vec<usize> = lengths.iter().map(|axis| axis.0).collect();
        prop_assume!(shape.iter().product::<usize>() < 5_000);
        // Makes a random layout for the written array, without overlap: its axes are in random
        // order and have gaps, and some run backwards.
        let mut axes: Vec<usize> = (0..shape.len()).collect();
        let mut random = Random(order);
        for last in (1..axes.len()).rev() {
            axes.swap(last, random.below(last as u64 + 1) as usize);
        }
        let mut to = vec![0; shape.len()];
        let mut width = 1;
        for axis in axes {
            to[axis] = if lengths[axis].1 { width } else { -width };
            width *= shape[axis] as isize;
            width += gap;
        }
        let from: Vec<isize> = lengths.iter().map(|axis| axis.2).collect();
        let mut memory = Plain::default();
        let mut sides = Vec::new();
        for strides in [&to, &from] {
            let (before, behind) = reach(&shape, strides);
            let bytes: Vec<u8> =
                (0..(before + behind + 1 + off) * unit).map(|_| random.below(256) as u8).collect();
            let base = memory.put(&bytes);
            sides.push((bytes, base, (before + off) * unit));
        }
        let at = |i: usize| sides[i].1 + sides[i].2 as u64;
        memory.run(&copy(unit, &shape, at(0), &to, at(1), &from));
        let mut wanted = sides[0].0.clone();
        for index in indices(&shape) {
            let byte = |i: usize, strides: &[isize]| {
                (sides[i].2 as isize + place(&index, strides) * unit as isize) as usize
            };
            wanted[byte(0, &to)..][..unit].copy_from_slice(&sides[1].0[byte(1, &from)..][..unit]);
        }
        prop_assert_eq!(memory.get::<u8>(sides[0].1, wanted.len()), wanted);
    }
}

#[test]
fn adjacent_is_flat_large_is_split() {
    let at = |address, strides| Operand::Array { address, strides };
    let name = |launches: Vec<gpuheap_kernels::Launch>| {
        let names: Vec<String> = launches.iter().map(|launch| launch.kernel.name()).collect();
        names.join(" ")
    };
    let add = |shape: &[usize], left, right| {
        arithmetic(Arithmetic::Add, Type::F32, shape, 0x1000, left, right)
    };
    let whole = at(0x9000, &[20, 5, 1]);
    assert_eq!(name(add(&[3, 4, 5], whole, whole)), "gpuheap_flat_add_f32_array_array");
    assert_eq!(
        name(add(&[3, 4, 5], whole, Operand::Scalar(0))),
        "gpuheap_flat_add_f32_array_scalar"
    );
    let rows = at(0x9000, &[0, 0, 1]);
    assert_eq!(name(add(&[3, 4, 5], whole, rows)), "gpuheap_strided_add_f32_array_array");
    let four = at(0x9000, &[16, 4, 1]);
    assert_eq!(name(add(&[3, 4, 4], four, rows)), "gpuheap_vectors_add_f32_array_array");
    assert_eq!(
        name(add(&[3, 4, 4], four, at(0x9004, &[0, 0, 1]))),
        "gpuheap_strided_add_f32_array_array"
    );
    // An axis with one element may have any stride.
    let odd = at(0x9000, &[7, 5, 1]);
    assert_eq!(name(add(&[1, 4, 5], odd, odd)), "gpuheap_flat_add_f32_array_array");
    assert_eq!(name(add(&[3, 0, 5], whole, rows)), "");

    // Adjacent elements take one launch, even if 31 bits cannot count them. Other elements take
    // several launches.
    assert_eq!(cast(Type::I8, Type::F32, 1 << 33, 0, 1 << 40).len(), 1);
    let (row, strides) = (1 << 33, [0, 1]);
    let launches = add(&[3, row], at(1 << 40, &[row as isize, 1]), at(1 << 36, &strides));
    assert!(launches.len() > 1);
    let mut next = 0x1000;
    for launch in &launches {
        let words = launch.words.as_slice();
        assert!(words[0] < 1 << 31 && words[2] == next, "{launch:?}");
        // The count in `words[0]` is in vectors of 16 bytes.
        next += 16 * words[0];
    }
    assert_eq!(next, 0x1000 + 4 * 3 * row as u64);

    // A copy uses units as large as the shape, the strides and the addresses allow.
    assert_eq!(name(copy(2, &[4, 64], 0x1000, &[64, 1], 0x9000, &[128, 1])), "gpuheap_copy_16");
    assert_eq!(name(copy(2, &[4, 64], 0x1000, &[64, 1], 0x9000, &[68, 1])), "gpuheap_copy_8");
    assert_eq!(name(copy(2, &[4, 64], 0x1002, &[64, 1], 0x9000, &[128, 1])), "gpuheap_copy_2");
    assert_eq!(name(copy(1, &[64], 0x1000, &[1], 0x9000, &[2])), "gpuheap_copy_1");
    assert_eq!(name(copy(3, &[64], 0x1000, &[1], 0x9000, &[1])), "");
}
