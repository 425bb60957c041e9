//! Tests of every operator with every type, on edge values.

use gpuheap::DeviceArray;
use gpuheap::arithmetic::Signed;
use gpuheap::emu::Schedule;

use crate::reference::{Bench, Reference, assert_same, for_each_number, pairs, values};

for_each_number!(arrays: with_arrays);
for_each_number!(numbers: with_numbers);
for_each_number!(in_place: in_place_of);
for_each_number!(compared: comparisons_of);
for_each_number!(negated: negation_of; i8 i16 i32 i64 isize f32 f64);

fn zip<T: Reference, U>(left: &[T], right: &[T], op: impl Fn(T, T) -> U) -> Vec<U> {
    left.iter().zip(right).map(|(left, right)| op(*left, *right)).collect()
}

/// Returns left and right operands: all pairs of edge values, and so many other values that kernels
/// run full vectors and blocks with a remainder.
fn both<T: Reference>() -> (Vec<T>, Vec<T>) {
    let (mut left, mut right) = pairs::<T>();
    left.extend(values::<T>(5003, 1));
    right.extend(values::<T>(5003, 2));
    (left, right)
}

fn with_arrays<T: Reference>() {
    let bench = Bench::new(Schedule::Seeded(1));
    let target = bench.target();
    let (left, right) = both::<T>();
    let (a, b) = (target.array(&left).unwrap(), target.array(&right).unwrap());
    let same = |result: DeviceArray<T>, op: fn(T, T) -> T, what: &str| {
        assert_same(&result.to_vec().unwrap(), &zip(&left, &right, op), what);
    };
    same((&a + &b).unwrap(), T::plus, "+");
    same((&a - &b).unwrap(), T::minus, "-");
    same((&a * &b).unwrap(), T::times, "*");
    same((&a / &b).unwrap(), T::by, "/");
    same(a.try_add(&b).unwrap(), T::plus, "try_add");
    same(a.view().try_sub(&b).unwrap(), T::minus, "try_sub");
    same(a.try_mul(b.view()).unwrap(), T::times, "try_mul");
    same(a.try_div(b.copy().unwrap()).unwrap(), T::by, "try_div");
    let chained = a.try_add(&b).unwrap().try_mul(&a).unwrap().try_sub(&b).unwrap();
    let expected = zip(&zip(&zip(&left, &right, T::plus), &left, T::times), &right, T::minus);
    assert_same(&chained.to_vec().unwrap(), &expected, "a chain");
    drop(chained);
    // A left side taken by value gives its memory to the result, so nothing is allocated.
    let copies = [(); 4].map(|()| (a.copy().unwrap(), b.copy().unwrap()));
    let [add, sub, mul, div] = copies;
    let (results, used) =
        bench.allocated(|| [add.0 + add.1, sub.0 - &sub.1, mul.0 * mul.1.view(), div.0 / div.1]);
    assert_eq!(used.allocations, 0);
    drop((sub.1, mul.1));
    let [add, sub, mul, div] = results.map(Result::unwrap);
    same(add, T::plus, "+ of values");
    same(sub, T::minus, "- of values");
    same(mul, T::times, "* of values");
    same(div, T::by, "/ of values");
    // Combines an array with itself.
    let doubled = (&a + &a).unwrap().to_vec().unwrap();
    assert_same(&doubled, &zip(&left, &left, T::plus), "a + a");
    drop((a, b));
    bench.end();
}

fn with_numbers<T: Reference>() {
    let bench = Bench::new(Schedule::OnDemand);
    let target = bench.target();
    let left = values::<T>(1000, 3);
    let a = target.array(&left).unwrap();
    for number in T::EDGES {
        let numbers = vec![*number; left.len()];
        let same = |result: DeviceArray<T>, op: fn(T, T) -> T| {
            let expected = zip(&left, &numbers, op);
            assert_same(&result.to_vec().unwrap(), &expected, &format!("with {number}"));
        };
        same((&a + *number).unwrap(), T::plus);
        same((&a - *number).unwrap(), T::minus);
        same((&a * *number).unwrap(), T::times);
        same((&a / *number).unwrap(), T::by);
        same(a.try_add(*number).unwrap(), T::plus);
        same(a.try_sub(*number).unwrap(), T::minus);
        same(a.try_mul(*number).unwrap(), T::times);
        same(a.try_div(*number).unwrap(), T::by);
        let on_the_left = |result: DeviceArray<T>, op: fn(T, T) -> T| {
            let expected = zip(&numbers, &left, op);
            assert_same(&result.to_vec().unwrap(), &expected, &format!("{number} on the left"));
        };
        on_the_left(a.try_sub_from(*number).unwrap(), T::minus);
        on_the_left(a.try_div_into(*number).unwrap(), T::by);
        let copies = [(); 4].map(|()| a.copy().unwrap());
        let ([add, sub, mul, div], used) = bench.allocated(|| {
            let [add, sub, mul, div] = copies;
            [add + *number, sub - *number, mul * *number, div / *number].map(Result::unwrap)
        });
        assert_eq!(used.allocations, 0);
        same(add, T::plus);
        same(sub, T::minus);
        same(mul, T::times);
        same(div, T::by);
    }
    drop(a);
    bench.end();
}

/// Tests operators with a number on the left. Each element type has its own implementation of them.
macro_rules! on_the_left {
    ($($of:ident)*) => {
        mod on_the_left {
            use super::*;
            $(
                #[test]
                fn $of() {
                    let bench = Bench::new(Schedule::Seeded(2));
                    let right = values::<$of>(777, 4);
                    let a = bench.target().array(&right).unwrap();
                    for number in <$of>::EDGES {
                        let numbers = vec![*number; right.len()];
                        let same = |result: DeviceArray<$of>, op: fn($of, $of) -> $of| {
                            let expected = zip(&numbers, &right, op);
                            assert_same(&result.to_vec().unwrap(), &expected, "on the left");
                        };
                        same((*number + &a).unwrap(), Reference::plus);
                        same((*number - &a).unwrap(), Reference::minus);
                        same((*number * &a).unwrap(), Reference::times);
                        same((*number / &a).unwrap(), Reference::by);
                        let [sub, div] = [(); 2].map(|()| a.copy().unwrap());
                        let (results, used) = bench.allocated(|| [*number - sub, *number / div]);
                        assert_eq!(used.allocations, 0);
                        let [sub, div] = results.map(Result::unwrap);
                        same(sub, Reference::minus);
                        same(div, Reference::by);
                    }
                    drop(a);
                    bench.end();
                }
            )*
        }
    };
}

on_the_left!(i8 i16 i32 i64 isize u8 u16 u32 u64 usize f32 f64);

fn in_place_of<T: Reference>() {
    let bench = Bench::new(Schedule::Seeded(3));
    let target = bench.target();
    let (left, right) = both::<T>();
    let (a, b) = (target.array(&left).unwrap(), target.array(&right).unwrap());
    let two = T::EDGES[3];
    let mut c = a.copy().unwrap();
    let ((), used) = bench.allocated(|| {
        c.add_assign(&b).unwrap();
        c.mul_assign(two).unwrap();
        c.sub_assign(a.view()).unwrap();
        c.div_assign(b.view()).unwrap();
        c.add_assign(&a).unwrap();
    });
    assert_eq!(used.allocations, 0);
    let expected: Vec<T> = left
        .iter()
        .zip(&right)
        .map(|(a, b)| a.plus(*b).times(two).minus(*a).by(*b).plus(*a))
        .collect();
    assert_same(&c.to_vec().unwrap(), &expected, "in place");
    // Adds a part of an array to the array itself. `c` and `part` are clones of one shared array.
    drop(c);
    let mut c = a.copy().unwrap().into_shared();
    let part = c.clone().into_slice(3..1001).unwrap();
    c.slice_mut(3..1001).unwrap().add_assign(&part).unwrap();
    let mut expected = left.clone();
    expected[3..1001].iter_mut().for_each(|element| *element = element.plus(*element));
    assert_same(&c.to_vec().unwrap(), &expected, "a part of itself");
    drop((a, b, c, part));
    bench.end();
}

fn comparisons_of<T: Reference>() {
    let bench = Bench::new(Schedule::Seeded(4));
    let target = bench.target();
    let (left, right) = both::<T>();
    let (a, b) = (target.array(&left).unwrap(), target.array(&right).unwrap());
    let same = |found: DeviceArray<bool>, right: &[T], op: fn(&T, &T) -> bool, what: &str| {
        let expected = zip(&left, right, |left, right| op(&left, &right));
        assert!(found.to_vec().unwrap() == expected, "{what}");
    };
    same(a.equal(&b).unwrap(), &right, T::eq, "equal");
    same(a.not_equal(&b).unwrap(), &right, T::ne, "not equal");
    same(a.less(&b).unwrap(), &right, T::lt, "less");
    same(a.less_equal(b.view()).unwrap(), &right, T::le, "less or equal");
    same(a.greater(&b).unwrap(), &right, T::gt, "greater");
    same(a.greater_equal(b).unwrap(), &right, T::ge, "greater or equal");
    for number in T::EDGES {
        let numbers = vec![*number; left.len()];
        same(a.equal(*number).unwrap(), &numbers, T::eq, "equal to a number");
        same(a.not_equal(*number).unwrap(), &numbers, T::ne, "not equal to a number");
        same(a.less(*number).unwrap(), &numbers, T::lt, "less than a number");
        same(a.less_equal(*number).unwrap(), &numbers, T::le, "less than a number or equal");
        same(a.greater(*number).unwrap(), &numbers, T::gt, "greater than a number");
        same(a.greater_equal(*number).unwrap(), &numbers, T::ge, "greater than one or equal");
    }
    drop(a);
    bench.end();
}

fn negation_of<T: Reference + Signed>() {
    let bench = Bench::new(Schedule::Seeded(5));
    let host = values::<T>(1003, 6);
    let expected: Vec<T> = host.iter().map(|one| one.times(T::MINUS_ONE)).collect();
    let a = bench.target().array(&host).unwrap();
    assert_same(&(-&a).unwrap().to_vec().unwrap(), &expected, "-a");
    assert_same(&a.try_neg().unwrap().to_vec().unwrap(), &expected, "try_neg");
    let part = (-&a.slice(1..).unwrap()).unwrap();
    assert_same(&part.to_vec().unwrap(), &expected[1..], "-a of a part");
    let (negated, used) = bench.allocated(|| (-a).unwrap());
    assert_eq!(used.allocations, 0);
    assert_same(&negated.to_vec().unwrap(), &expected, "-a of a value");
    drop((part, negated));
    bench.end();
}

#[test]
fn masks_are_turned_and_asked() {
    let bench = Bench::new(Schedule::Seeded(6));
    let target = bench.target();
    for length in [1, 5, 31, 1024, 8192, 8193, 70_000] {
        let mut host = vec![true; length];
        let all = target.array(&host).unwrap();
        assert!(all.all().unwrap() && all.any().unwrap());
        let none = (!&all).unwrap();
        assert_eq!(all.try_not().unwrap().to_vec().unwrap(), none.to_vec().unwrap());
        assert!(!none.all().unwrap() && !none.any().unwrap());
        assert!(none.to_vec().unwrap().iter().all(|one| !one));
        host[length / 2] = false;
        let mixed = target.array(&host).unwrap();
        assert_eq!((mixed.all().unwrap(), mixed.any().unwrap()), (false, length > 1));
        let (turned, used) = bench.allocated(|| (!mixed).unwrap());
        assert_eq!(used.allocations, 0);
        assert_eq!(turned.to_vec().unwrap(), host.iter().map(|one| !one).collect::<Vec<_>>());
        assert_eq!((turned.all().unwrap(), turned.any().unwrap()), (length == 1, true));
    }
    let nothing = target.zeroed::<bool, _>((3, 0)).unwrap();
    assert!(nothing.all().unwrap() && !nothing.any().unwrap());
    drop(nothing);
    bench.end();
}

/// Small integers are divided through floats, whose division is not exact. For 8 bits, tests every
/// quotient. For 16 bits, tests every divisor, with quotients at and next to whole numbers.
#[test]
fn quotients_of_small_integers_are_exact() {
    let bench = Bench::new(Schedule::Immediate);
    let target = bench.target();
    macro_rules! check {
        ($of:ty, $pairs:expr) => {{
            let (left, right): (Vec<$of>, Vec<$of>) = $pairs.unzip();
            let (a, b) = (target.array(&left).unwrap(), target.array(&right).unwrap());
            let quotients = (a / &b).unwrap().to_vec().unwrap();
            assert_same(&quotients, &zip(&left, &right, <$of>::by), stringify!($of));
        }};
    }
    let all = |least: i32, greatest: i32| {
        (least..=greatest).flat_map(move |a| (least..=greatest).map(move |b| (a, b)))
    };
    check!(i8, all(-128, 127).map(|(a, b)| (a as i8, b as i8)));
    check!(u8, all(0, 255).map(|(a, b)| (a as u8, b as u8)));
    let beside = |least: i32, greatest: i32| {
        (least..=greatest).flat_map(move |b| {
            let most = greatest / b.abs().max(1);
            let times = [0, 1, 2, 3, most / 3, most / 2, most - 1, most, most + 1];
            let near = move |times: i32| [-1, 0, 1].map(|more| (times * b + more, b));
            let mirrored = times.into_iter().flat_map(move |times| [times, -times]).flat_map(near);
            mirrored.filter(move |(a, _)| (least..=greatest).contains(a))
        })
    };
    check!(i16, beside(-32_768, 32_767).map(|(a, b)| (a as i16, b as i16)));
    check!(u16, beside(0, 65_535).map(|(a, b)| (a as u16, b as u16)));
    bench.end();
}
