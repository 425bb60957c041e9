//! Expected results, computed in Rust on the host.

use gpuheap::arithmetic::Number;
use gpuheap::emu::Schedule;
use gpuheap::{Device, Heap, PoolKind, Target, ThreadUsage};
use gpuheap_pool::testing::Random;

use crate::support::{assert_all_returned, make_heap};

/// A device with a heap. At the end, all memory of the heap must be returned.
pub(crate) struct Bench {
    pub(crate) device: Device,
    pub(crate) heap: Heap,
}

impl Bench {
    pub(crate) fn new(schedule: Schedule) -> Bench {
        let (device, heap) = make_heap(1 << 30, schedule, PoolKind::Split);
        Bench { device, heap }
    }

    /// Runs `work`, and returns its value and this thread's allocations during it.
    pub(crate) fn allocated<R>(&self, work: impl FnOnce() -> R) -> (R, ThreadUsage) {
        let meter = self.heap.meter().unwrap().with_thread();
        let value = work();
        (value, meter.read().unwrap().thread.unwrap())
    }

    pub(crate) fn target(&self) -> Target {
        self.heap.target().unwrap()
    }

    pub(crate) fn end(self) {
        assert_all_returned(&self.device, &self.heap, "arithmetic");
    }
}

/// A number type with its arithmetic on the host.
pub(crate) trait Reference: Number {
    /// Values at which arithmetic goes wrong most easily.
    const EDGES: &'static [Self];
    /// Factor that negates a number.
    const MINUS_ONE: Self;

    fn plus(self, other: Self) -> Self;
    fn minus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    fn by(self, other: Self) -> Self;
    fn pattern(self) -> u64;
    fn draw(random: &mut Random) -> Self;
    /// Returns the lesser of the two; NaN if either is NaN.
    fn lesser(self, other: Self) -> Self;
    fn greater(self, other: Self) -> Self;
    fn is_nan(self) -> bool {
        false
    }
    /// Returns `true` if both are equal to the last bit, or both are NaN.
    fn is_same(self, other: Self) -> bool {
        self.pattern() == other.pattern() || (self.is_nan() && other.is_nan())
    }
}

macro_rules! integers {
    ($($of:ident $edges:expr;)*) => {
        $(
            impl Reference for $of {
                const EDGES: &'static [$of] = &$edges;
                const MINUS_ONE: $of = (0 as $of).wrapping_sub(1);

                fn plus(self, other: $of) -> $of {
                    self.wrapping_add(other)
                }
                fn minus(self, other: $of) -> $of {
                    self.wrapping_sub(other)
                }
                fn times(self, other: $of) -> $of {
                    self.wrapping_mul(other)
                }
                fn by(self, other: $of) -> $of {
                    if other == 0 { 0 } else { self.wrapping_div(other) }
                }
                fn pattern(self) -> u64 {
                    self as u64
                }
                fn draw(random: &mut Random) -> $of {
                    random.below(u64::MAX) as $of
                }
                fn lesser(self, other: $of) -> $of {
                    self.min(other)
                }
                fn greater(self, other: $of) -> $of {
                    self.max(other)
                }
            }
        )*
    };
}

macro_rules! floats {
    ($($of:ident $bits:ident $subnormal:expr;)*) => {
        $(
            impl Reference for $of {
                const EDGES: &'static [$of] = &[
                    0.0, -0.0, 1.0, -1.0, 0.1, -1.5, 3.0, 1e30, $of::EPSILON, $of::MAX, $of::MIN,
                    $of::MIN_POSITIVE, $subnormal, -$subnormal, $of::INFINITY, $of::NEG_INFINITY,
                    $of::NAN,
                ];
                const MINUS_ONE: $of = -1.0;

                fn plus(self, other: $of) -> $of {
                    self + other
                }
                fn minus(self, other: $of) -> $of {
                    self - other
                }
                fn times(self, other: $of) -> $of {
                    self * other
                }
                fn by(self, other: $of) -> $of {
                    self / other
                }
                fn pattern(self) -> u64 {
                    self.to_bits() as u64
                }
                fn draw(random: &mut Random) -> $of {
                    // Returns numbers of every magnitude, and sometimes arbitrary bits.
                    match random.below(4) {
                        0 => $of::from_bits(random.below(u64::MAX) as $bits),
                        _ => (random.below(2_000_001) as $of - 1e6) / 1024.0,
                    }
                }
                fn lesser(self, other: $of) -> $of {
                    if self.is_nan() || other.is_nan() { return $of::NAN }
                    if self.total_cmp(&other).is_lt() { self } else { other }
                }
                fn greater(self, other: $of) -> $of {
                    if self.is_nan() || other.is_nan() { return $of::NAN }
                    if self.total_cmp(&other).is_gt() { self } else { other }
                }
                fn is_nan(self) -> bool {
                    self.is_nan()
                }
            }
        )*
    };
}

integers! {
    i8 [0, 1, -1, 2, -7, 100, i8::MAX, i8::MAX - 1, i8::MIN, i8::MIN + 1];
    i16 [0, 1, -1, 2, -7, 181, i16::MAX, i16::MAX - 1, i16::MIN, i16::MIN + 1];
    i32 [0, 1, -1, 2, -7, 46_341, i32::MAX, i32::MAX - 1, i32::MIN, i32::MIN + 1];
    i64 [0, 1, -1, 2, -7, 3_037_000_500, i64::MAX, i64::MAX - 1, i64::MIN, i64::MIN + 1];
    isize [0, 1, -1, 2, -7, isize::MAX, isize::MAX - 1, isize::MIN, isize::MIN + 1];
    u8 [0, 1, 2, 7, 16, 128, u8::MAX, u8::MAX - 1];
    u16 [0, 1, 2, 7, 256, 1 << 15, u16::MAX, u16::MAX - 1];
    u32 [0, 1, 2, 7, 65_536, 1 << 31, u32::MAX, u32::MAX - 1];
    u64 [0, 1, 2, 7, 1 << 32, 1 << 63, u64::MAX, u64::MAX - 1];
    usize [0, 1, 2, 7, 65_536, usize::MAX, usize::MAX - 1];
}

floats! {
    f32 u32 1e-40;
    f64 u64 1e-310;
}

/// Returns the edge values first, then random ones.
pub(crate) fn values<T: Reference>(count: usize, seed: u64) -> Vec<T> {
    let mut random = Random(seed);
    let edges = T::EDGES.iter().copied().cycle().take(count.min(2 * T::EDGES.len()));
    let mut values: Vec<T> = edges.collect();
    values.resize_with(count, || T::draw(&mut random));
    values
}

/// Returns every pair of edge values.
pub(crate) fn pairs<T: Reference>() -> (Vec<T>, Vec<T>) {
    let edges = T::EDGES;
    edges.iter().flat_map(|left| edges.iter().map(move |right| (*left, *right))).unzip()
}

#[track_caller]
pub(crate) fn assert_same<T: Reference>(found: &[T], expected: &[T], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        let (bits, wanted) = (found.pattern(), expected.pattern());
        assert!(
            found.is_same(*expected),
            "{what}: element {at} is {found} ({bits:#x}), not {expected} ({wanted:#x})"
        );
    }
}

/// Makes a test for each type of number.
macro_rules! for_each_number {
    ($name:ident: $body:ident; $($of:ident)*) => {
        mod $name {
            $(
                #[test]
                fn $of() {
                    super::$body::<$of>();
                }
            )*
        }
    };
    ($name:ident: $body:ident) => {
        for_each_number! {
            $name: $body; i8 i16 i32 i64 isize u8 u16 u32 u64 usize f32 f64
        }
    };
}

pub(crate) use for_each_number;
