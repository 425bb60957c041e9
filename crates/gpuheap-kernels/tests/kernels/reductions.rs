//! Tests of reductions, in all their passes.

use gpuheap_kernels::{Reduction, Type, partials, reduce};

use crate::support::*;

const SHAPES: [(usize, usize, usize); 12] = [
    (1, 1, 1),
    (4, 5, 1),
    (3, 32, 1),
    (3, 33, 1),
    (2, 1025, 1),
    (2, 8192, 1),
    (1, 8193, 1),
    (1, 70_001, 1),
    (3, 4, 5),
    (1, 257, 3),
    (2, 1000, 7),
    (1, 2, 5000),
];

/// Runs all passes and returns the results, of shape `[outer, inner]`.
fn reduced<T: Native, R: Native>(
    op: Reduction,
    (outer, mut n, inner): (usize, usize, usize),
    values: &[T],
) -> Vec<R> {
    let mut memory = Plain::default();
    let (mut of, mut input) = (T::OF, memory.put(values));
    loop {
        let left = partials(n, inner);
        let out = memory.room::<u64>(outer * left * inner);
        memory.run(&reduce(op, of, outer, n, inner, out, input));
        (of, n, input) = (op.output(of), left, out);
        assert_eq!(of, R::OF);
        if left == 1 {
            return memory.get(out, outer * inner);
        }
    }
}

/// Returns, for each result, the values that are reduced to it.
fn columns<T: Native>((outer, n, inner): (usize, usize, usize), values: &[T]) -> Vec<Vec<T>> {
    let column = |o: usize, i: usize| (0..n).map(|k| values[(o * n + k) * inner + i]).collect();
    (0..outer).flat_map(|o| (0..inner).map(move |i| (o, i))).map(|(o, i)| column(o, i)).collect()
}

fn random_edges<T: Native>(count: usize, random: &mut Random) -> Vec<T> {
    let edges = T::edges();
    (0..count).map(|_| edges[random.below(edges.len() as u64) as usize]).collect()
}

macro_rules! check {
    ($T:ident $op:ident to $R:ident, $random:expr, $naive:expr) => {
        for shape in SHAPES {
            let values: Vec<$T> = random_edges(shape.0 * shape.1 * shape.2, $random);
            let found = reduced::<$T, $R>(Reduction::$op, shape, &values);
            let wanted: Vec<$R> = columns(shape, &values).into_iter().map($naive).collect();
            assert_eq!(
                bits(&found),
                bits(&wanted),
                "{} of {} {shape:?}",
                stringify!($op),
                stringify!($T)
            );
        }
    };
}

#[test]
fn integers_and_bools() {
    let random = &mut Random(1);
    macro_rules! each {
        ($($T:ident $S:ident),*) => {$(
            check!($T Sum to $S, random, |column: Vec<$T>| {
                column.iter().fold(0, |sum: $S, value| sum.wrapping_add($S::from(*value)))
            });
            check!($T Min to $T, random, |column: Vec<$T>| column.into_iter().min().unwrap());
            check!($T Max to $T, random, |column: Vec<$T>| column.into_iter().max().unwrap());
            check!($T All to bool, random, |column: Vec<$T>| column.iter().all(|value| *value != $T::default()));
            check!($T Any to bool, random, |column: Vec<$T>| column.iter().any(|value| *value != $T::default()));
        )*};
    }
    each!(i8 i64, i16 i64, i32 i64, i64 i64, u8 u64, u16 u64, u32 u64, u64 u64, bool u64);
    // Totals of whole numbers are exact.
    check!(i16 Total to f64, random, |column: Vec<i16>| column.iter().map(|value| f64::from(*value)).sum::<f64>() + 0.0);
}

#[test]
fn float_min_max_handle_nan() {
    let random = &mut Random(2);
    macro_rules! each {
        ($($T:ident)*) => {$(
            for with_nan in [false, true] {
                for shape in SHAPES {
                    let mut values: Vec<$T> = random_edges(shape.0 * shape.1 * shape.2, random);
                    if !with_nan {
                        values.iter_mut().filter(|value| value.is_nan()).for_each(|value| *value = -0.0);
                    }
                    let extreme = |column: Vec<$T>, last: bool| {
                        let mut sorted = column;
                        sorted.sort_by($T::total_cmp);
                        match sorted.iter().find(|value| value.is_nan()) {
                            Some(nan) => *nan,
                            None => if last { sorted[sorted.len() - 1] } else { sorted[0] },
                        }
                    };
                    for (op, last) in [(Reduction::Min, false), (Reduction::Max, true)] {
                        let found = reduced::<$T, $T>(op, shape, &values);
                        let wanted: Vec<$T> =
                            columns(shape, &values).into_iter().map(|column| extreme(column, last)).collect();
                        assert_eq!(bits(&found), bits(&wanted), "{op:?} {shape:?}");
                    }
                }
            }
        )*};
    }
    each!(f32 f64);
}

#[test]
fn float_sums_are_doubles() {
    let mut random = Random(3);
    for shape in SHAPES {
        let count = shape.0 * shape.1 * shape.2;
        let values: Vec<f32> =
            (0..count).map(|_| random.below(1 << 20) as f32 - 500_000.0).collect();
        let wanted: Vec<f64> = columns(shape, &values)
            .iter()
            .map(|column| column.iter().map(|value| f64::from(*value)).sum::<f64>() + 0.0)
            .collect();
        assert_eq!(reduced::<f32, f64>(Reduction::Sum, shape, &values), wanted, "{shape:?}");
        assert_eq!(reduced::<f32, f64>(Reduction::Total, shape, &values), wanted, "{shape:?}");
    }
    let tenths = vec![0.1_f64; 1 << 20];
    let [sum] = reduced::<f64, f64>(Reduction::Sum, (1, 1 << 20, 1), &tenths)[..] else { panic!() };
    // Pairwise summation has a far smaller error than summation in sequence.
    assert!((sum - 104_857.6).abs() < 1e-9, "{sum}");
    let with_infinity = [1.0_f32, f32::INFINITY, 3.0];
    assert_eq!(reduced::<f32, f64>(Reduction::Sum, (1, 3, 1), &with_infinity), [f64::INFINITY]);
}

#[test]
fn empty_axis_gives_identity() {
    assert_eq!(reduced::<i32, i64>(Reduction::Sum, (2, 0, 3), &[]), [0; 6]);
    assert_eq!(reduced::<u8, u8>(Reduction::Min, (1, 0, 1), &[]), [255]);
    assert_eq!(reduced::<f32, f32>(Reduction::Max, (1, 0, 1), &[]), [f32::NEG_INFINITY]);
    assert_eq!(reduced::<bool, bool>(Reduction::All, (1, 0, 1), &[]), [true]);
    assert!(reduce(Reduction::Sum, Type::I8, 0, 5, 5, 0, 0).is_empty());
}
