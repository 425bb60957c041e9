//! Compares operations on values at the edges of every type with Rust's own operators.

use gpuheap_kernels::{
    Arithmetic, Comparison, Operand, Unary, arithmetic, cast, comparison, unary,
};

use crate::support::*;

/// Returns all pairs of a type's edge values, as a list of left and a list of right operands.
fn pairs<T: Native>() -> (Vec<T>, Vec<T>) {
    let edges = T::edges();
    edges.iter().flat_map(|a| edges.iter().map(|b| (*a, *b))).unzip()
}

/// Runs an operation on two arrays. For each pair, also runs it with a scalar on either side.
fn computed<T: Native, R: Native>(
    plan: impl Fn(usize, u64, Operand<'_>, Operand<'_>) -> Vec<gpuheap_kernels::Launch>,
) -> Vec<u64> {
    let (left, right) = pairs::<T>();
    let mut memory = Plain::default();
    let count = left.len();
    let (out, a, b) = (memory.room::<R>(count), memory.put(&left), memory.put(&right));
    memory.run(&plan(count, out, dense(a), dense(b)));
    let all = bits(&memory.get::<R>(out, count));
    for (at, (x, y)) in left.iter().zip(&right).enumerate() {
        let offset = (at * T::SIZE) as u64;
        let scalars = [Operand::Scalar(x.bits()), Operand::Scalar(y.bits())];
        for (l, r) in [(scalars[0], dense(b + offset)), (dense(a + offset), scalars[1])] {
            memory.run(&plan(1, out, l, r));
            assert_eq!(memory.get::<R>(out, 1)[0].bits(), all[at], "{x:?} and {y:?}");
        }
    }
    all
}

fn expected<T: Native, R: Native>(f: impl Fn(T, T) -> R) -> Vec<u64> {
    let (left, right) = pairs::<T>();
    left.into_iter().zip(right).map(|(a, b)| f(a, b).bits()).collect()
}

macro_rules! check_arithmetic {
    ($T:ident: $($op:ident $f:expr),*) => {$(
        let found = computed::<$T, $T>(|count, out, a, b| {
            arithmetic(Arithmetic::$op, $T::OF, &[count], out, a, b)
        });
        assert_eq!(found, expected::<$T, $T>($f), "{:?} of {}", Arithmetic::$op, stringify!($T));
    )*};
}

macro_rules! check_comparison {
    ($($T:ident)*) => {$(
        check_comparison!($T: Equal ==, NotEqual !=, Less <, LessEqual <=, Greater >, GreaterEqual >=);
    )*};
    ($T:ident: $($op:ident $symbol:tt),*) => {$(
        let found = computed::<$T, bool>(|count, out, a, b| {
            comparison(Comparison::$op, $T::OF, &[count], out, a, b)
        });
        #[allow(clippy::bool_comparison)]
        let wanted = expected::<$T, bool>(|a, b| a $symbol b);
        assert_eq!(found, wanted, "{:?} of {}", Comparison::$op, stringify!($T));
    )*};
}

#[test]
fn integers_wrap_divide_by_zero() {
    macro_rules! each {
        ($($T:ident)*) => {$(
            check_arithmetic!($T:
                Add $T::wrapping_add,
                Subtract $T::wrapping_sub,
                Multiply $T::wrapping_mul,
                Divide |a, b| if b == 0 { 0 } else { a.wrapping_div(b) }
            );
        )*};
    }
    each!(i8 i16 i32 i64 u8 u16 u32 u64);
}

#[test]
fn floats_round_once() {
    macro_rules! each {
        ($($T:ident)*) => {$(
            check_arithmetic!($T: Add |a, b| a + b, Subtract |a, b| a - b, Multiply |a, b| a * b, Divide |a, b| a / b);
        )*};
    }
    each!(f32 f64);
}

#[test]
fn comparisons_are_rusts() {
    check_comparison!(i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 bool);
}

#[test]
fn one_operand() {
    macro_rules! each {
        ($($T:ident $negate:expr, $zero:expr;)*) => {$(
            let values = $T::edges();
            let mut memory = Plain::default();
            let (out, input) = (memory.room::<$T>(values.len()), memory.put(&values));
            memory.run(&unary(Unary::Negate, $T::OF, values.len(), out, input));
            let negated: Vec<u64> = values.iter().map(|value| $negate(*value).bits()).collect();
            assert_eq!(bits(&memory.get::<$T>(out, values.len())), negated, stringify!($T));
            memory.run(&unary(Unary::Not, $T::OF, values.len(), out, input));
            let are_zero: Vec<bool> = values.iter().map(|value| *value == $zero).collect();
            assert_eq!(memory.get::<bool>(out, values.len()), are_zero, stringify!($T));
        )*};
    }
    each! {
        i8 i8::wrapping_neg, 0; i16 i16::wrapping_neg, 0; i32 i32::wrapping_neg, 0;
        i64 i64::wrapping_neg, 0; u8 u8::wrapping_neg, 0; u16 u16::wrapping_neg, 0;
        u32 u32::wrapping_neg, 0; u64 u64::wrapping_neg, 0;
        f32 |value: f32| -value, 0.0; f64 |value: f64| -value, 0.0;
    }
}

fn cast_to<F: Native, T: Native>(values: &[F]) -> Vec<u64> {
    let mut memory = Plain::default();
    let (out, input) = (memory.room::<T>(values.len()), memory.put(values));
    memory.run(&cast(F::OF, T::OF, values.len(), out, input));
    bits(&memory.get::<T>(out, values.len()))
}

#[test]
fn casts_are_rusts() {
    macro_rules! from {
        ($F:ident: $($T:ident)*) => {$(
            let values = $F::edges();
            let wanted: Vec<u64> = values.iter().map(|value| (*value as $T).bits()).collect();
            assert_eq!(cast_to::<$F, $T>(&values), wanted, "{} to {}", stringify!($F), stringify!($T));
            let zero: $F = 0 as $F;
            let wanted: Vec<u64> = values.iter().map(|value| (*value != zero).bits()).collect();
            assert_eq!(cast_to::<$F, bool>(&values), wanted, "{} to bool", stringify!($F));
            assert_eq!(cast_to::<bool, $T>(&[false, true]), [(0 as $T).bits(), (1 as $T).bits()]);
        )*};
    }
    macro_rules! each {
        ($($F:ident)*) => {$(
            from!($F: i8 i16 i32 i64 u8 u16 u32 u64 f32 f64);
        )*};
    }
    each!(i8 i16 i32 i64 u8 u16 u32 u64 f32 f64);
    assert_eq!(cast_to::<bool, bool>(&[false, true]), [0, 1]);
}
