//! Loads and stores elements in Rust, and computes with them.

use crate::{Arithmetic, Comparison, Reduction, Type};

/// Calls a generic function with the Rust type that a [`Type`](crate::Type) names.
macro_rules! with_type {
    ($of:expr, $T:ident => $call:expr) => {
        with_type!(@ $of, $T => $call; Bool $crate::run::element::Flag, I8 i8, I16 i16, I32 i32,
            I64 i64, U8 u8, U16 u16, U32 u32, U64 u64, F32 f32, F64 f64)
    };
    (@ $of:expr, $T:ident => $call:expr; $($name:ident $type:ty),*) => {
        match $of {
            $($crate::Type::$name => { type $T = $type; $call })*
        }
    };
}

pub(super) use with_type;

pub(super) trait Element: Copy {
    const SIZE: usize;
    /// Greatest value of the type, infinity included.
    const GREATEST: Self;
    /// Least value of the type, infinity included.
    const LEAST: Self;

    /// Reads an element from its bytes.
    fn load(bytes: &[u8]) -> Self;
    fn store(self, bytes: &mut [u8]);

    fn arithmetic(op: Arithmetic) -> fn(Self, Self) -> Self;
    fn comparison(op: Comparison) -> fn(Self, Self) -> bool;
    fn smaller(self, other: Self) -> Self;
    fn larger(self, other: Self) -> Self;

    /// Returns the element as a `Value`, without loss.
    fn value(self) -> Value;
    /// Converts a value, as Rust's `as` does from the value's original type.
    fn from_value(value: Value) -> Self;

    /// Returns the neutral value with which a reduction starts.
    fn identity(op: Reduction) -> Self {
        match op {
            Reduction::Sum | Reduction::Total => Self::from_value(Value::Integer(0)),
            Reduction::Min | Reduction::All => Self::GREATEST,
            Reduction::Max | Reduction::Any => Self::LEAST,
        }
    }

    /// Returns the operation that combines two values of the result's type.
    fn combine(op: Reduction) -> fn(Self, Self) -> Self {
        match op {
            Reduction::Sum | Reduction::Total => Self::arithmetic(Arithmetic::Add),
            Reduction::Min | Reduction::All => Self::smaller,
            Reduction::Max | Reduction::Any => Self::larger,
        }
    }
}

/// Elements of any type, read as `A`. Code that uses this type is compiled once for each `A`, not
/// for each pair of types.
pub(super) struct Elements<A> {
    /// Size of an element in bytes.
    pub(super) size: usize,
    /// Reads an element from its bytes and converts it.
    pub(super) load: fn(&[u8]) -> A,
}

impl<A: Element> Elements<A> {
    pub(super) fn convert_from(from: Type) -> Elements<A> {
        with_type!(from, T => {
            Elements { size: T::SIZE, load: |bytes| A::from_value(T::load(bytes).value()) }
        })
    }
}

/// A value that holds any element without loss.
#[derive(Clone, Copy)]
pub(super) enum Value {
    Integer(i128),
    Float(f64),
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Flag(pub(super) bool);

macro_rules! integers {
    ($($T:ident),*) => {$(
        impl Element for $T {
            const GREATEST: $T = $T::MAX;
            const LEAST: $T = $T::MIN;

            fn arithmetic(op: Arithmetic) -> fn($T, $T) -> $T {
                match op {
                    Arithmetic::Add => $T::wrapping_add,
                    Arithmetic::Subtract => $T::wrapping_sub,
                    Arithmetic::Multiply => $T::wrapping_mul,
                    Arithmetic::Divide => |a, b| if b == 0 { 0 } else { a.wrapping_div(b) },
                }
            }

            compare!($T);
            little_endian!($T);

            fn smaller(self, other: $T) -> $T {
                self.min(other)
            }

            fn larger(self, other: $T) -> $T {
                self.max(other)
            }

            fn value(self) -> Value {
                Value::Integer(i128::from(self))
            }
        }
    )*};
}

macro_rules! floats {
    ($($T:ident),*) => {$(
        impl Element for $T {
            const GREATEST: $T = $T::INFINITY;
            const LEAST: $T = $T::NEG_INFINITY;

            fn arithmetic(op: Arithmetic) -> fn($T, $T) -> $T {
                match op {
                    Arithmetic::Add => |a, b| a + b,
                    Arithmetic::Subtract => |a, b| a - b,
                    Arithmetic::Multiply => |a, b| a * b,
                    Arithmetic::Divide => |a, b| a / b,
                }
            }

            compare!($T);
            little_endian!($T);

            fn smaller(self, other: $T) -> $T {
                if self.is_nan() || other.is_nan() {
                    $T::NAN
                } else if self < other || self == other && self.is_sign_negative() {
                    self
                } else {
                    other
                }
            }

            fn larger(self, other: $T) -> $T {
                if self.is_nan() || other.is_nan() {
                    $T::NAN
                } else if self > other || self == other && self.is_sign_positive() {
                    self
                } else {
                    other
                }
            }

            fn value(self) -> Value {
                Value::Float(f64::from(self))
            }
        }
    )*};
}

/// Implements loads, stores and the conversion from a [`Value`], for integers and floats.
macro_rules! little_endian {
    ($T:ident) => {
        const SIZE: usize = size_of::<$T>();

        fn load(bytes: &[u8]) -> $T {
            bytes.try_into().map_or($T::default(), $T::from_le_bytes)
        }

        fn store(self, bytes: &mut [u8]) {
            bytes.copy_from_slice(&self.to_le_bytes());
        }

        fn from_value(value: Value) -> $T {
            match value {
                Value::Integer(value) => value as $T,
                Value::Float(value) => value as $T,
            }
        }
    };
}

macro_rules! compare {
    ($T:ident) => {
        fn comparison(op: Comparison) -> fn($T, $T) -> bool {
            match op {
                Comparison::Equal => |a, b| a == b,
                Comparison::NotEqual => |a, b| a != b,
                Comparison::Less => |a, b| a < b,
                Comparison::LessEqual => |a, b| a <= b,
                Comparison::Greater => |a, b| a > b,
                Comparison::GreaterEqual => |a, b| a >= b,
            }
        }
    };
}

integers!(i8, i16, i32, i64, u8, u16, u32, u64);
floats!(f32, f64);

impl Element for Flag {
    const SIZE: usize = 1;
    const GREATEST: Flag = Flag(true);
    const LEAST: Flag = Flag(false);

    fn load(bytes: &[u8]) -> Flag {
        Flag(u8::load(bytes) != 0)
    }

    fn store(self, bytes: &mut [u8]) {
        u8::from(self.0).store(bytes);
    }

    /// No kernel computes with `Bool`. Arithmetic on its bytes uses `u8`.
    fn arithmetic(_: Arithmetic) -> fn(Flag, Flag) -> Flag {
        |_, b| b
    }

    compare!(Flag);

    fn smaller(self, other: Flag) -> Flag {
        self.min(other)
    }

    fn larger(self, other: Flag) -> Flag {
        self.max(other)
    }

    fn value(self) -> Value {
        Value::Integer(i128::from(self.0))
    }

    fn from_value(value: Value) -> Flag {
        match value {
            Value::Integer(value) => Flag(value != 0),
            Value::Float(value) => Flag(value != 0.0),
        }
    }
}
