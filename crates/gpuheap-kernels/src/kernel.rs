//! Kernels and their names.

use crate::axes::{AXIS_WORDS, FIRST_AXIS, MOST_AXES};
use crate::threads::UNITS;
use crate::types::worded;
use crate::{Arithmetic, Comparison, Fold, Reduction, Type};

/// A kernel. A GPU runs the kernel's PTX, and an emulated device runs the kernel's Rust code. Both
/// identify the kernel by its name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Kernel(pub(crate) Kind);

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Kind {
    /// An operation on each pair of operands.
    Elementwise { path: Path, does: Does, of: Type, left: Source, right: Source },
    /// A conversion of values to another type.
    Cast { from: Type, to: Type },
    /// A copy of units of `unit` bytes.
    Copy { unit: usize },
    /// A reduction along the last axis. Several threads work on each piece of a row.
    Rows { op: Reduction, of: Type },
    /// A reduction along an axis other than the last, or along a short last axis. One thread works
    /// on each piece of a column.
    Columns { op: Reduction, of: Type },
    /// For each index, a copy of `unit` bytes. The index names the row that is copied.
    Take { unit: usize },
    /// An aggregation of values by key. If there are no values, keys are counted. If `shared`, each
    /// block first aggregates in its shared memory.
    Groups { shared: bool, fold: Fold, of: Option<Type>, key: Type },
}

worded! {
    /// How a kernel finds its elements.
    pub(crate) enum Path {
        /// The elements of every array are adjacent, and the kernel reads them in order.
        Flat = "flat",
        /// Single elements, located by coordinates and strides.
        Strided = "strided",
        /// Vectors of elements, located by coordinates and strides. Along the innermost axis, each
        /// array either has adjacent elements or repeats one element.
        Vectors = "vectors",
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Does {
    Arithmetic(Arithmetic),
    Comparison(Comparison),
}

worded! {
    /// Kind of operand.
    pub(crate) enum Source {
        Array = "array",
        Scalar = "scalar",
    }
}

const SOURCES: [[Source; 2]; 4] = [
    [Source::Array, Source::Array],
    [Source::Array, Source::Scalar],
    [Source::Scalar, Source::Array],
    [Source::Scalar, Source::Scalar],
];

/// Prefix of all names.
const PREFIX: &str = "gpuheap";

impl Kernel {
    /// Returns the name of the kernel's entry in the PTX. No two kernels have the same name.
    pub fn name(&self) -> String {
        let words = match self.0 {
            Kind::Elementwise { path, does, of, left, right } => {
                vec![path.word(), does.word(), of.word(), left.word(), right.word()]
            }
            Kind::Cast { from, to } => vec!["cast", from.word(), to.word()],
            Kind::Copy { unit } => return format!("{PREFIX}_copy_{unit}"),
            Kind::Rows { op, of } => vec!["rows", op.word(), of.word()],
            Kind::Columns { op, of } => vec!["columns", op.word(), of.word()],
            Kind::Take { unit } => return format!("{PREFIX}_take_{unit}"),
            Kind::Groups { shared, fold, of, key } => {
                let place = if shared { "shared" } else { "global" };
                vec!["groups", place, fold.word(), of.map_or(ROWS, Type::word), key.word()]
            }
        };
        format!("{PREFIX}_{}", words.join("_"))
    }

    /// Parses the name of a kernel. Returns `None` if no gpuheap kernel has that name.
    pub fn parse(name: &str) -> Option<Kernel> {
        let words: Vec<&str> = name.strip_prefix(PREFIX)?.strip_prefix('_')?.split('_').collect();
        let kind = match words[..] {
            ["cast", from, to] => {
                Kind::Cast { from: Type::from_word(from)?, to: Type::from_word(to)? }
            }
            ["copy", unit] => Kind::Copy { unit: parse_unit(unit)? },
            ["take", unit] => Kind::Take { unit: parse_unit(unit)? },
            ["rows", op, of] => {
                Kind::Rows { op: Reduction::from_word(op)?, of: Type::from_word(of)? }
            }
            ["columns", op, of] => {
                Kind::Columns { op: Reduction::from_word(op)?, of: Type::from_word(of)? }
            }
            ["groups", place, fold, of, key] => {
                let fold = Fold::from_word(fold)?;
                Kind::Groups {
                    shared: match place {
                        "shared" => true,
                        "global" => false,
                        _ => return None,
                    },
                    fold,
                    of: match of {
                        ROWS if fold == Fold::Count => None,
                        of => Some(Type::from_word(of)?),
                    },
                    key: Type::from_word(key).filter(|key| key.is_integer())?,
                }
            }
            [path, does, of, left, right] => {
                let (path, does) = (Path::from_word(path)?, Does::from_word(does)?);
                let of = Type::from_word(of).filter(|of| does.takes(*of))?;
                let sources = [Source::from_word(left)?, Source::from_word(right)?];
                let [left, right] = Some(sources).filter(|sources| path.takes(*sources))?;
                Kind::Elementwise { path, does, of, left, right }
            }
            _ => return None,
        };
        Some(Kernel(kind))
    }

    /// Returns the number of 64-bit words in the kernel's only parameter.
    pub fn words(&self) -> usize {
        match self.0 {
            Kind::Elementwise { path: Path::Flat, .. } => 4,
            Kind::Elementwise { .. } | Kind::Copy { .. } => FIRST_AXIS + AXIS_WORDS * MOST_AXES,
            Kind::Cast { .. } => 3,
            Kind::Take { .. } => 5,
            Kind::Rows { .. } | Kind::Columns { .. } => 7,
            Kind::Groups { .. } => 11,
        }
    }

    /// Returns `true` if the kernel copies bytes unchanged and computes nothing.
    pub fn only_copies(&self) -> bool {
        matches!(self.0, Kind::Copy { .. })
    }

    /// Returns every kernel.
    pub fn all() -> Vec<Kernel> {
        let mut all = Vec::new();
        let arithmetic = Arithmetic::ALL.iter().copied().map(Does::Arithmetic);
        let comparison = Comparison::ALL.iter().copied().map(Does::Comparison);
        for does in arithmetic.chain(comparison) {
            for &path in Path::ALL {
                for &of in Type::ALL.iter().filter(|of| does.takes(**of)) {
                    let sources = SOURCES.into_iter().filter(|sources| path.takes(*sources));
                    all.extend(sources.map(|[left, right]| Kind::Elementwise {
                        path,
                        does,
                        of,
                        left,
                        right,
                    }));
                }
            }
        }
        all.extend(UNITS.map(|unit| Kind::Copy { unit }));
        all.extend(UNITS.map(|unit| Kind::Take { unit }));
        for &of in Type::ALL {
            all.extend(Type::ALL.iter().map(|&to| Kind::Cast { from: of, to }));
            all.extend(Reduction::ALL.iter().map(|&op| Kind::Rows { op, of }));
            all.extend(Reduction::ALL.iter().map(|&op| Kind::Columns { op, of }));
        }
        for &key in Type::ALL.iter().filter(|key| key.is_integer()) {
            for shared in [true, false] {
                all.push(Kind::Groups { shared, fold: Fold::Count, of: None, key });
                for &fold in Fold::ALL {
                    let of = |of: &Type| Kind::Groups { shared, fold, of: Some(*of), key };
                    all.extend(Type::ALL.iter().map(of));
                }
            }
        }
        all.into_iter().map(Kernel).collect()
    }
}

/// Word for "no values" in the name of a kernel that counts the rows of each key. In other names,
/// the type of the values stands there.
const ROWS: &str = "rows";

fn parse_unit(word: &str) -> Option<usize> {
    UNITS.into_iter().find(|unit| unit.to_string() == word)
}

impl Path {
    /// Returns `true` if a kernel with these operands exists. Strided kernels need at least one
    /// array.
    fn takes(self, sources: [Source; 2]) -> bool {
        self == Path::Flat || sources.contains(&Source::Array)
    }
}

impl Does {
    /// Returns `true` if this operation has a kernel for elements of type `of`.
    fn takes(self, of: Type) -> bool {
        of != Type::Bool || matches!(self, Does::Comparison(_))
    }

    pub(crate) fn output(self, of: Type) -> Type {
        match self {
            Does::Arithmetic(_) => of,
            Does::Comparison(_) => Type::Bool,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Does::Arithmetic(op) => op.word(),
            Does::Comparison(op) => op.word(),
        }
    }

    fn from_word(word: &str) -> Option<Does> {
        let arithmetic = Arithmetic::from_word(word).map(Does::Arithmetic);
        arithmetic.or_else(|| Comparison::from_word(word).map(Does::Comparison))
    }
}
