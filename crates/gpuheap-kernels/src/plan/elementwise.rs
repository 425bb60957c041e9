//! Plans of arithmetic, comparisons and casts.

use crate::axes::{Axis, Piece, collapse, split};
use crate::kernel::{Does, Kind, Path, Source};
use crate::threads::grid;
use crate::threads::{STRIDED_EACH, flat_each};
use crate::{Arithmetic, Comparison, Kernel, Launch, Type, Unary, Words};

/// Operand of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operand<'a> {
    /// A value that is used for every element. The bits are zero-extended.
    Scalar(u64),
    /// An array.
    Array {
        /// Address of the array's first element.
        address: u64,
        /// Distance between adjacent elements of the array along each axis of the result, in
        /// elements. The distance along a broadcast axis is 0.
        strides: &'a [isize],
    },
}

/// Plans `out = left op right`, element by element. `out` has the operands' type and is row-major
/// without gaps. `out` may be the memory of an operand with the same layout.
pub fn arithmetic(
    op: Arithmetic,
    of: Type,
    shape: &[usize],
    out: u64,
    left: Operand<'_>,
    right: Operand<'_>,
) -> Vec<Launch> {
    let of = if of == Type::Bool { Type::U8 } else { of };
    elementwise(Does::Arithmetic(op), of, shape, out, left, right)
}

/// Plans `out = left op right`, element by element. `out` has the type `Bool`, and is row-major
/// without gaps.
pub fn comparison(
    op: Comparison,
    of: Type,
    shape: &[usize],
    out: u64,
    left: Operand<'_>,
    right: Operand<'_>,
) -> Vec<Launch> {
    elementwise(Does::Comparison(op), of, shape, out, left, right)
}

/// Plans `out = op input` for `count` adjacent elements. `out` may be `input` if the types have the
/// same size.
pub fn unary(op: Unary, of: Type, count: usize, out: u64, input: u64) -> Vec<Launch> {
    let input = Operand::Array { address: input, strides: &[1] };
    match op {
        // Multiplication by -1 is exact for floats, including zeros and infinities. Integers wrap.
        Unary::Negate => {
            let minus_one = match of {
                Type::F32 => u64::from((-1.0_f32).to_bits()),
                Type::F64 => (-1.0_f64).to_bits(),
                _ => u64::MAX >> (64 - 8 * of.size()),
            };
            arithmetic(Arithmetic::Multiply, of, &[count], out, input, Operand::Scalar(minus_one))
        }
        Unary::Not => comparison(Comparison::Equal, of, &[count], out, input, Operand::Scalar(0)),
    }
}

/// Plans `out = input as to` for `count` adjacent elements, like Rust's `as`. A cast to `Bool` is
/// true if the value is not 0.
pub fn cast(from: Type, to: Type, count: usize, out: u64, input: u64) -> Vec<Launch> {
    if count == 0 {
        return Vec::new();
    }
    let words = Words::new(&[count as u64, out, input]);
    let (grid, block) = grid((count as u64).div_ceil(flat_each(from, to)));
    vec![Launch { kernel: Kernel(Kind::Cast { from, to }), words, grid, block }]
}

fn elementwise(
    does: Does,
    of: Type,
    shape: &[usize],
    out: u64,
    left: Operand<'_>,
    right: Operand<'_>,
) -> Vec<Launch> {
    let strides = [left.strides(), right.strides()];
    let Some(axes) = collapse(shape, strides, of.size()) else { return Vec::new() };
    let sources = [left.source(), right.source()];
    let kernel = |path| {
        let [left, right] = sources;
        Kernel(Kind::Elementwise { path, does, of, left, right })
    };
    let words = [left.word(), right.word()];
    if is_flat(&axes, sources, of) {
        let count = axes.first().map_or(1, |axis| axis.length as u64);
        let (grid, block) = grid(count.div_ceil(flat_each(of, does.output(of))));
        let words = Words::new(&[count, out, words[0], words[1]]);
        return vec![Launch { kernel: kernel(Path::Flat), words, grid, block }];
    }
    let out_of = does.output(of);
    let vectors = in_vectors(&axes, (out, out_of), of, sources, words);
    let (path, axes, size) = match vectors {
        Some(vectors) => (Path::Vectors, vectors, flat_each(of, out_of) as usize * out_of.size()),
        None => (Path::Strided, axes, out_of.size()),
    };
    let launch = |piece: Piece| {
        let each = if path == Path::Vectors { 1 } else { STRIDED_EACH };
        let (grid, block) = grid(piece.count().div_ceil(each));
        let words = Words::new(&piece.words((out, size), words));
        Launch { kernel: kernel(path), words, grid, block }
    };
    split(&axes).into_iter().map(launch).collect()
}

/// Counts the innermost axis in vectors. Returns `None` if vectors cannot be used. Along the
/// innermost axis, every array must repeat one element, or have adjacent elements that are aligned
/// for vector loads.
fn in_vectors(
    axes: &[Axis],
    (out, out_of): (u64, Type),
    of: Type,
    sources: [Source; 2],
    words: [u64; 2],
) -> Option<Vec<Axis>> {
    let each = flat_each(of, out_of) as usize;
    let (inner, outer) = axes.split_last()?;
    let aligned = |at: u64, of: Type| at.is_multiple_of((each * of.size()).min(16) as u64);
    if !inner.length.is_multiple_of(each) || !aligned(out, out_of) {
        return None;
    }
    for i in 0..2 {
        let dense = inner.strides[i] == of.size() as i64;
        let steps = outer.iter().map(|axis| axis.strides[i].unsigned_abs());
        let fits = !dense || steps.chain([words[i]]).all(|at| aligned(at, of));
        if sources[i] == Source::Array && !(fits && (dense || inner.strides[i] == 0)) {
            return None;
        }
    }
    let strides = inner.strides.map(|stride| stride * each as i64);
    let inner = Axis { length: inner.length / each, strides };
    Some(outer.iter().copied().chain([inner]).collect())
}

/// Returns `true` if the elements of every array are adjacent.
fn is_flat(axes: &[Axis], sources: [Source; 2], of: Type) -> bool {
    let dense = |axis: &Axis| {
        (0..2).all(|i| sources[i] == Source::Scalar || axis.strides[i] == of.size() as i64)
    };
    axes.len() <= 1 && axes.iter().all(dense)
}

impl Operand<'_> {
    fn strides(&self) -> &[isize] {
        match self {
            Operand::Scalar(_) => &[],
            Operand::Array { strides, .. } => strides,
        }
    }

    fn source(&self) -> Source {
        match self {
            Operand::Scalar(_) => Source::Scalar,
            Operand::Array { .. } => Source::Array,
        }
    }

    /// Returns the address of an array or the bits of a scalar.
    fn word(&self) -> u64 {
        match *self {
            Operand::Scalar(bits) => bits,
            Operand::Array { address, .. } => address,
        }
    }
}
