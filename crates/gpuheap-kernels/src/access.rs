//! Bytes that a launch uses.

use crate::Kernel;
use crate::axes::{AXIS_WORDS, Axis, FIRST_AXIS, MOST_AXES, for_each_row};
use crate::kernel::{Kind, Path, Source};
use crate::threads::flat_each;
use crate::{Fold, Reduction, Type};

/// Bytes that a launch reads or writes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Access {
    /// `true` if the launch writes the bytes; `false` if it reads them.
    pub writes: bool,
    /// Alignment of the address of every run in `region`, in bytes.
    pub align: u64,
    /// Location of the bytes.
    pub region: Region,
}

/// Bytes in runs of equal length.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Region {
    /// Address of the first run.
    pub address: u64,
    /// Size of a run in bytes.
    pub run: u64,
    /// Axes of the region, outermost first. An axis has a number of runs, and the distance in bytes
    /// from one run to the next.
    pub axes: Vec<(u64, i64)>,
}

impl Kernel {
    /// Returns the bytes that a launch with the arguments `words` reads or writes. If the launch
    /// updates bytes in place, the result lists them twice: once as read, once as written.
    pub fn accesses(&self, words: &[u64]) -> Vec<Access> {
        let word = |index: usize| words.get(index).copied().unwrap_or(0);
        match self.0 {
            Kind::Elementwise { path, does, of, left, right } => {
                let each = vector(path, of, does.output(of));
                let axes = element_axes(words, each);
                let operand = |index: usize, source| match (source, path) {
                    (Source::Scalar, _) => None,
                    (Source::Array, Path::Flat) => Some(block(false, word(1 + index), word(0), of)),
                    (Source::Array, Path::Strided | Path::Vectors) => Some(Access {
                        writes: false,
                        align: of.size() as u64,
                        region: Region::along_axes(word(2 + index), of.size(), &axes, index - 1),
                    }),
                };
                let out = match path {
                    Path::Flat => word(1),
                    Path::Strided | Path::Vectors => word(2),
                };
                let reads = [operand(1, left), operand(2, right)];
                let written =
                    block(true, out, word(0).saturating_mul(each as u64), does.output(of));
                reads.into_iter().flatten().chain([written]).collect()
            }
            Kind::Cast { from, to } => {
                vec![block(false, word(2), word(0), from), block(true, word(1), word(0), to)]
            }
            Kind::Copy { unit } => {
                let axes = axes(words);
                let side = |writes, of| Access {
                    writes,
                    align: unit as u64,
                    region: Region::along_axes(word(3 + of), unit, &axes, of),
                };
                vec![side(false, 1), side(true, 0)]
            }
            Kind::Rows { op, of } => reduced(words, op, of, 1),
            Kind::Columns { op, of } => reduced(words, op, of, word(4)),
            Kind::Take { unit } => {
                let side = |writes, address, rows: u64, unit: usize| Access {
                    writes,
                    align: unit as u64,
                    region: Region {
                        address,
                        run: rows.saturating_mul(unit as u64),
                        axes: Vec::new(),
                    },
                };
                vec![
                    side(false, word(2), word(4), unit),
                    side(false, word(3), word(0), Type::U32.size()),
                    side(true, word(1), word(0), unit),
                ]
            }
            Kind::Groups { fold, of, key, .. } => {
                let (rows, inner, groups) = (word(0), word(1), word(2));
                let (values, slots) = (rows.saturating_mul(inner), groups.saturating_mul(inner));
                let out = fold.output(of.unwrap_or(Type::U64));
                let mut all = vec![
                    block(false, word(5), rows, key),
                    block(false, word(3), slots, out),
                    block(true, word(3), slots, out),
                ];
                all.extend(of.map(|of| block(false, word(4), values, of)));
                if word(6) != 0 {
                    all.extend([false, true].map(|writes| block(writes, word(6), 2, Type::U64)));
                }
                if word(7) != 0 {
                    all.push(block(false, word(7), values.div_ceil(8), Type::U8));
                }
                if fold == Fold::Squares {
                    all.push(block(false, word(8), slots, Type::F64));
                }
                all
            }
        }
    }

    /// If this kernel is a copy, calls `each` for every run of bytes that a launch with the
    /// arguments `words` copies. The arguments of `each` are the target's address, the source's
    /// address, and the length. For any other kernel, never calls `each`.
    pub fn for_each_copied(&self, words: &[u64], mut each: impl FnMut(u64, u64, u64)) {
        let Kind::Copy { unit } = self.0 else { return };
        let axes = axes(words);
        let word = |index: usize| words.get(index).copied().unwrap_or(0);
        for_each_place(&axes, |[to, from]| {
            each(word(3).wrapping_add_signed(to), word(4).wrapping_add_signed(from), unit as u64);
        });
    }
}

impl Region {
    /// Returns the address and the length of the smallest range that contains all bytes. Returns
    /// `None` if the region has no bytes, or exceeds 64-bit addresses.
    pub fn bounds(&self) -> Option<(u64, u64)> {
        let (mut first, mut last) = (i128::from(self.address), i128::from(self.address));
        for &(count, stride) in &self.axes {
            let reach = i128::from(count.checked_sub(1)?).checked_mul(i128::from(stride))?;
            first += reach.min(0);
            last += reach.max(0);
        }
        let length = u64::try_from(last - first).ok()?.checked_add(self.run)?;
        let first = u64::try_from(first).ok()?;
        first.checked_add(length)?;
        (self.run != 0).then_some((first, length))
    }

    /// Returns the number of runs.
    pub fn runs(&self) -> u64 {
        self.axes.iter().fold(1, |runs: u64, (count, _)| runs.saturating_mul(*count))
    }

    /// Calls `each` with the start address of every run of adjacent bytes.
    pub fn for_each_run(&self, mut each: impl FnMut(u64)) {
        let axis =
            |&(count, stride): &(u64, i64)| Axis { length: count as usize, strides: [stride, 0] };
        let axes: Vec<Axis> = self.axes.iter().map(axis).collect();
        for_each_place(&axes, |[offset, _]| each(self.address.wrapping_add_signed(offset)));
    }

    /// Returns the region that the elements of one array occupy: the first array if `array` is 0,
    /// the second if it is 1. The region contains each element once, and adjacent elements form one
    /// run.
    fn along_axes(address: u64, size: usize, axes: &[Axis], array: usize) -> Region {
        let mut region = Region { address, run: size as u64, axes: Vec::new() };
        for axis in axes.iter().rev() {
            let (length, stride) = (axis.length as u64, axis.strides[array]);
            if length == 0 {
                region.run = 0;
            } else if stride == 0 || length == 1 {
                // The axis has stride 0 (broadcast) or length 1, and adds no bytes to the region.
            } else if region.axes.is_empty() && stride.cast_unsigned() == region.run {
                region.run = region.run.saturating_mul(length);
            } else {
                region.axes.insert(0, (length, stride));
            }
        }
        region
    }
}

/// Reads the axes from the arguments of a strided kernel. The outermost axis is the first.
pub(crate) fn axes(words: &[u64]) -> Vec<Axis> {
    let rank = words.get(1).map_or(0, |rank| *rank as usize).min(MOST_AXES);
    let all = words.get(FIRST_AXIS..).unwrap_or_default().chunks_exact(AXIS_WORDS);
    let mut axes: Vec<Axis> = all.take(rank).map(Axis::from_words).collect();
    axes.reverse();
    axes
}

/// Returns the number of elements that a strided kernel handles as one unit. On the vector path, a
/// unit is a vector. On any other path, a unit is one element.
pub(crate) fn vector(path: Path, of: Type, out_of: Type) -> usize {
    if path == Path::Vectors { flat_each(of, out_of) as usize } else { 1 }
}

/// Reads the axes from the arguments of a strided kernel, and returns them in elements. In `words`,
/// one step along the innermost axis covers `each` elements.
pub(crate) fn element_axes(words: &[u64], each: usize) -> Vec<Axis> {
    let mut axes = axes(words);
    if let Some(inner) = axes.last_mut() {
        inner.length *= each;
        inner.strides = inner.strides.map(|stride| stride / each as i64);
    }
    axes
}

/// Calls `each` in row-major order for every element along the axes, with the element's offsets in
/// both arrays.
fn for_each_place(axes: &[Axis], mut each: impl FnMut([i64; 2])) {
    for_each_row(axes, |row| {
        let mut at = row.offsets;
        for _ in 0..row.length {
            each(at);
            at = [0, 1].map(|of| at[of].wrapping_add(row.strides[of]));
        }
        Ok::<(), std::convert::Infallible>(())
    })
    .unwrap_or_else(|never| match never {});
}

fn reduced(words: &[u64], op: Reduction, of: Type, inner: u64) -> Vec<Access> {
    let word = |index: usize| words.get(index).copied().unwrap_or(0);
    let (outer, n, chunk) = (word(0), word(1), word(2).max(1));
    let each = outer.saturating_mul(inner);
    let (read, written) = (n, n.div_ceil(chunk).max(1));
    let read = block(false, word(6), read.saturating_mul(each), of);
    vec![read, block(true, word(5), written.saturating_mul(each), op.output(of))]
}

/// Returns the access to `count` adjacent elements.
fn block(writes: bool, address: u64, count: u64, of: Type) -> Access {
    let size = of.size() as u64;
    let region = Region { address, run: count.saturating_mul(size), axes: Vec::new() };
    Access { writes, align: size, region }
}
