//! Types of elements that arithmetic works on.

use std::any::TypeId;
use std::fmt;

use bytemuck::Zeroable;
use gpuheap_kernels::Type;

use crate::array::Element;

/// A number or `bool`. Arrays of them can be cast and summed. Sealed: programs cannot implement it.
///
/// | | `Sum` | `Mean` |
/// |---|---|---|
/// | `i8` to `i64`, `isize` | `i64` | `f64` |
/// | `u8` to `u64`, `usize`, `bool` | `u64` | `f64` |
/// | `f32` | `f32` | `f32` |
/// | `f64` | `f64` | `f64` |
#[diagnostic::on_unimplemented(
    message = "the elements `{Self}` cannot be counted with",
    note = "integers of 8 to 64 bits, `f32`, `f64` and `bool` can; other elements are worked on by kernels of your own"
)]
pub trait Scalar: Element + Zeroable + sealed::HasType {
    /// Type of a sum of these elements.
    type Sum: Number;
    /// Type of a mean of these elements.
    type Mean: Number;
}

/// An integer of 8 to 64 bits, `f32` or `f64`, for arithmetic. Sealed: programs cannot implement
/// it.
#[diagnostic::on_unimplemented(
    message = "the elements `{Self}` cannot be calculated with",
    note = "integers of 8 to 64 bits, `f32` and `f64` can; other elements are worked on by kernels of your own"
)]
pub trait Number: Scalar + PartialOrd + fmt::Display {}

/// A signed number. Sealed: programs cannot implement it.
#[diagnostic::on_unimplemented(
    message = "elements `{Self}` cannot be negated",
    note = "signed integers, `f32` and `f64` can; cast unsigned ones first"
)]
pub trait Signed: Number {}

/// An integer of 8 to 64 bits: the key of a group. Sealed: programs cannot implement it.
#[diagnostic::on_unimplemented(
    message = "elements `{Self}` cannot be keys of groups",
    note = "integers of 8 to 64 bits can"
)]
pub trait Key: Number {}

pub(super) mod sealed {
    use gpuheap_kernels::Type;

    pub trait HasType {
        /// Name of this type in kernels.
        #[doc(hidden)]
        const TYPE: Type;
        /// Type in which sums are accumulated.
        #[doc(hidden)]
        type Total: super::Number;

        /// Returns the bits of the number, zero-extended to 64 bits.
        #[doc(hidden)]
        fn bits(self) -> u64;

        /// Converts an accumulated total to the sum.
        #[doc(hidden)]
        fn sum(total: Self::Total) -> Self::Sum
        where
            Self: super::Scalar;

        /// Rounds a mean to the nearest value of its type.
        #[doc(hidden)]
        fn mean(mean: f64) -> Self::Mean
        where
            Self: super::Scalar;
    }
}

macro_rules! scalars {
    ($($of:ty = $type:expr, $total:ty, $sum:ty, $mean:ty, $bits:expr;)*) => {
        $(
            impl Scalar for $of {
                type Sum = $sum;
                type Mean = $mean;
            }

            impl sealed::HasType for $of {
                const TYPE: Type = $type;
                type Total = $total;

                fn bits(self) -> u64 {
                    let bits: fn($of) -> u64 = $bits;
                    bits(self)
                }

                fn sum(total: $total) -> $sum {
                    total as $sum
                }

                fn mean(mean: f64) -> $mean {
                    mean as $mean
                }
            }
        )*

        /// Returns the name of a type in kernels; `None` if kernels do not support the type.
        pub(crate) fn type_of<T: 'static>() -> Option<Type> {
            let of = TypeId::of::<T>();
            [$((TypeId::of::<$of>(), $type)),*]
                .into_iter()
                .find_map(|(known, name)| (known == of).then_some(name))
        }
    };
}

const ISIZE: Type = if size_of::<isize>() == 8 { Type::I64 } else { Type::I32 };
const USIZE: Type = if size_of::<usize>() == 8 { Type::U64 } else { Type::U32 };

scalars! {
    bool = Type::Bool, u64, u64, f64, u64::from;
    i8 = Type::I8, i64, i64, f64, |of| u64::from(of as u8);
    i16 = Type::I16, i64, i64, f64, |of| u64::from(of as u16);
    i32 = Type::I32, i64, i64, f64, |of| u64::from(of as u32);
    i64 = Type::I64, i64, i64, f64, |of| of as u64;
    isize = ISIZE, i64, i64, f64, |of| of as usize as u64;
    u8 = Type::U8, u64, u64, f64, u64::from;
    u16 = Type::U16, u64, u64, f64, u64::from;
    u32 = Type::U32, u64, u64, f64, u64::from;
    u64 = Type::U64, u64, u64, f64, |of| of;
    usize = USIZE, u64, u64, f64, |of| of as u64;
    f32 = Type::F32, f64, f32, f32, |of| u64::from(of.to_bits());
    f64 = Type::F64, f64, f64, f64, f64::to_bits;
}

macro_rules! are {
    ($trait:ident: $($of:ty)*) => { $(impl $trait for $of {})* };
}

are!(Number: i8 i16 i32 i64 isize u8 u16 u32 u64 usize f32 f64);
are!(Signed: i8 i16 i32 i64 isize f32 f64);
are!(Key: i8 i16 i32 i64 isize u8 u16 u32 u64 usize);
