//! Computes on the host the results that operations on device arrays have to give.

use super::*;

pub(super) trait Model:
    Plain + Item<Group = Elements> + Zeroable + PartialEq + Debug
{
    fn from_seed(seed: u64) -> Self;
    /// Returns `true` if arithmetic and conversions of the element have exactly one correct result.
    fn is_tame(self) -> bool {
        true
    }
    /// Computes an array on the device, by the method (such as `try_add`) that `which` selects.
    fn combined(
        left: Seen<'_, Self>,
        right: Seen<'_, Self>,
        number: Self,
        which: u32,
    ) -> Made<Self>;
    /// Computes one element of the result of `combined` on the host.
    fn combine(self, right: Self, number: Self, which: u32) -> Self;
    /// Adds a number in place.
    fn add(left: DeviceViewMut<'_, Self, IxDyn>, right: Self) -> Option<Result<(), Error>>;
    fn plus(self, other: Self) -> Self;
    /// Converts an array by `cu` or `narrow`.
    fn converted(from: &Slot<Self>, world: &mut World<'_>, step: Step) -> Vec<Box<dyn Thing>>;
}

pub(super) type Made<T> = Result<DeviceArray<T, IxDyn>, Error>;
pub(super) type Seen<'a, T> = DeviceView<'a, T, IxDyn>;

macro_rules! converts {
    ($of:ident) => {
        fn converted(
            from: &Slot<$of>,
            world: &mut World<'_>,
            (_, a, b, c): Step,
        ) -> Vec<Box<dyn Thing>> {
            let (target, to) = world.target(a, b, c);
            let (freed, host) = (from.is_freed(), from.model().unwrap_or_default());
            if b % 2 == 0 {
                let array = unless_refused(target.cu(&from.view()), freed);
                let host: Vec<<$of as Plain>::Cu> = host.into_iter().map(Plain::cu).collect();
                slot(world, to, array, &host)
            } else {
                let array = unless_refused(target.narrow(&from.view()), freed);
                let host: Vec<<$of as Plain>::Narrow> =
                    host.into_iter().map(Plain::narrow).collect();
                slot(world, to, array, &host)
            }
        }
    };
}

macro_rules! numbers {
    ($($of:ident: $plus:expr, $minus:expr, $times:expr, $tame:expr;)*) => {
        $(
            impl Model for $of {
                fn from_seed(seed: u64) -> $of {
                    (seed % 200) as $of
                }

                fn is_tame(self) -> bool {
                    let tame: fn($of) -> bool = $tame;
                    tame(self)
                }

                fn combined(left: Seen<'_, $of>, right: Seen<'_, $of>, number: $of, which: u32) -> Made<$of> {
                    match which % 4 {
                        0 => left.try_add(right),
                        1 => left.try_sub(right),
                        2 => left.try_mul(right),
                        _ => left.try_sub_from(number),
                    }
                }

                fn combine(self, right: $of, number: $of, which: u32) -> $of {
                    let minus: fn($of, $of) -> $of = $minus;
                    let times: fn($of, $of) -> $of = $times;
                    match which % 4 {
                        0 => self.plus(right),
                        1 => minus(self, right),
                        2 => times(self, right),
                        _ => minus(number, self),
                    }
                }

                fn add(mut left: DeviceViewMut<'_, $of, IxDyn>, right: $of) -> Option<Result<(), Error>> {
                    Some(left.add_assign(right))
                }

                fn plus(self, other: $of) -> $of {
                    let plus: fn($of, $of) -> $of = $plus;
                    plus(self, other)
                }

                converts!($of);
            }
        )*
    };
}

numbers! {
    u8: u8::wrapping_add, u8::wrapping_sub, u8::wrapping_mul, |_| true;
    u16: u16::wrapping_add, u16::wrapping_sub, u16::wrapping_mul, |_| true;
    i32: i32::wrapping_add, i32::wrapping_sub, i32::wrapping_mul, |_| true;
    u64: u64::wrapping_add, u64::wrapping_sub, u64::wrapping_mul, |_| true;
    f32: |a, b| a + b, |a, b| a - b, |a, b| a * b, |of| of.is_finite() && of.abs() < 1e30;
    f64: |a, b| a + b, |a, b| a - b, |a, b| a * b, |of| of.is_finite() && of.abs() < 1e30;
}

impl Model for bool {
    fn from_seed(seed: u64) -> bool {
        seed % 3 == 1
    }

    fn combined(left: Seen<'_, bool>, _: Seen<'_, bool>, _: bool, _: u32) -> Made<bool> {
        left.try_not()
    }

    fn combine(self, _: bool, _: bool, _: u32) -> bool {
        !self
    }

    fn add(_: DeviceViewMut<'_, bool, IxDyn>, _: bool) -> Option<Result<(), Error>> {
        None
    }

    fn plus(self, _: bool) -> bool {
        self
    }

    converts!(bool);
}
