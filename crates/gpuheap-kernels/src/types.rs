//! Element types and the operations on them.

/// Declares an enum with a word for each variant. The words make up the names of kernels.
macro_rules! worded {
    ($(#[$doc:meta])* $vis:vis enum $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        $vis enum $name {
            $($(#[$variant_doc])* $variant,)*
        }

        impl $name {
            /// All variants.
            $vis const ALL: &[$name] = &[$($name::$variant),*];

            pub(crate) fn word(self) -> &'static str {
                match self {
                    $($name::$variant => $word,)*
                }
            }

            pub(crate) fn from_word(word: &str) -> Option<$name> {
                $name::ALL.iter().copied().find(|known| known.word() == word)
            }
        }
    };
}
pub(crate) use worded;

worded! {
    /// Type of an array's elements, little-endian in memory.
    pub enum Type {
        /// A byte, 0 or 1. Any other byte counts as 1.
        Bool = "bool",
        /// `i8`.
        I8 = "i8",
        /// `i16`.
        I16 = "i16",
        /// `i32`.
        I32 = "i32",
        /// `i64`.
        I64 = "i64",
        /// `u8`.
        U8 = "u8",
        /// `u16`.
        U16 = "u16",
        /// `u32`.
        U32 = "u32",
        /// `u64`.
        U64 = "u64",
        /// `f32`.
        F32 = "f32",
        /// `f64`.
        F64 = "f64",
    }
}

worded! {
    /// An operation on two numbers. Integers wrap, and their division by 0 gives 0. Floats are
    /// rounded to nearest, and subnormals are kept. An operation on `Bool` works on the bytes, as
    /// on `U8`.
    pub enum Arithmetic {
        /// `a + b`.
        Add = "add",
        /// `a - b`.
        Subtract = "subtract",
        /// `a * b`.
        Multiply = "multiply",
        /// `a / b`, rounded towards zero for integers.
        Divide = "divide",
    }
}

worded! {
    /// A comparison of two values. It gives the same result as Rust's operator.
    pub enum Comparison {
        /// `a == b`.
        Equal = "equal",
        /// `a != b`.
        NotEqual = "notequal",
        /// `a < b`.
        Less = "less",
        /// `a <= b`.
        LessEqual = "lessequal",
        /// `a > b`.
        Greater = "greater",
        /// `a >= b`.
        GreaterEqual = "greaterequal",
    }
}

/// An operation on one value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Unary {
    /// `-a`; integers wrap.
    Negate,
    /// `a == 0`, with a result of type `Bool`. For a `Bool`, this is the negation.
    Not,
}

worded! {
    /// A reduction of many values to one.
    pub enum Reduction {
        /// Sum of all values. For integers, the sum is `I64` or `U64`, and wraps. For floats, it is
        /// `F64`. For `Bool`, it is the number of true values as `U64`.
        Sum = "sum",
        /// Sum of the values as `F64`, for computing a mean.
        Total = "total",
        /// Smallest value; NaN if a value is NaN; -0.0 is less than 0.0.
        Min = "min",
        /// Largest value; NaN if a value is NaN; -0.0 is less than 0.0.
        Max = "max",
        /// True if no value is 0, as `Bool`.
        All = "all",
        /// True if some value is not 0, as `Bool`.
        Any = "any",
    }
}

worded! {
    /// An operation that aggregates the values of each group.
    pub enum Fold {
        /// Number of values, as `U64`.
        Count = "count",
        /// Sum, in the result type of [`Reduction::Sum`].
        Sum = "sum",
        /// Sum of the squared distances from the group's mean, as `F64`.
        Squares = "squares",
        /// Smallest value, in the result type of [`Reduction::Sum`]. Skips NaN; -0.0 is below 0.0.
        Min = "min",
        /// Largest value, in the result type of [`Reduction::Sum`]. Skips NaN; -0.0 is below 0.0.
        Max = "max",
    }
}

impl Fold {
    /// Returns the type of the aggregates. Each aggregate takes 8 bytes.
    pub const fn output(self, of: Type) -> Type {
        match self {
            Fold::Count => Type::U64,
            Fold::Squares => Type::F64,
            Fold::Sum | Fold::Min | Fold::Max => Reduction::Sum.output(of),
        }
    }

    /// Returns the reduction that combines two aggregates of a group.
    pub(crate) const fn reduction(self) -> Reduction {
        match self {
            Fold::Count | Fold::Sum | Fold::Squares => Reduction::Sum,
            Fold::Min => Reduction::Min,
            Fold::Max => Reduction::Max,
        }
    }

    /// Returns the bits of the aggregate of an empty group. The caller fills `out` with these bits
    /// before a launch.
    pub const fn identity(self, of: Type) -> u64 {
        match (self, self.output(of)) {
            (Fold::Min, Type::F64) => f64::INFINITY.to_bits(),
            (Fold::Min, Type::I64) => i64::MAX as u64,
            (Fold::Min, _) => u64::MAX,
            (Fold::Max, Type::F64) => f64::NEG_INFINITY.to_bits(),
            (Fold::Max, Type::I64) => i64::MIN as u64,
            _ => 0,
        }
    }
}

impl Type {
    /// Returns the size of an element in bytes.
    pub const fn size(self) -> usize {
        match self {
            Type::Bool | Type::I8 | Type::U8 => 1,
            Type::I16 | Type::U16 => 2,
            Type::I32 | Type::U32 | Type::F32 => 4,
            Type::I64 | Type::U64 | Type::F64 => 8,
        }
    }

    /// Returns `true` if the type is `F32` or `F64`.
    pub const fn is_float(self) -> bool {
        matches!(self, Type::F32 | Type::F64)
    }

    /// Returns `true` if the type is a signed integer.
    pub const fn is_signed(self) -> bool {
        matches!(self, Type::I8 | Type::I16 | Type::I32 | Type::I64)
    }

    /// Returns `true` if the type is an integer. Keys must be integers.
    pub const fn is_integer(self) -> bool {
        !matches!(self, Type::Bool | Type::F32 | Type::F64)
    }
}

impl Reduction {
    /// Returns the type of a reduction's results. Every pass of [`reduce`](crate::reduce) writes
    /// this type, and every pass but the first reads it.
    pub const fn output(self, of: Type) -> Type {
        match (self, of) {
            (Reduction::Total, _) => Type::F64,
            (Reduction::All | Reduction::Any, _) => Type::Bool,
            (Reduction::Min | Reduction::Max, of) => of,
            (Reduction::Sum, of) if of.is_float() => Type::F64,
            (Reduction::Sum, of) if of.is_signed() => Type::I64,
            (Reduction::Sum, _) => Type::U64,
        }
    }
}
