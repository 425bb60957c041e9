//! Converts operations on arrays to launches. Joins axes, and splits the work so that 32 bits can
//! count a kernel's elements. Arrays of adjacent elements get kernels without strides.

mod elementwise;
mod group;
mod reduce;

pub use elementwise::{Operand, arithmetic, cast, comparison, unary};
pub use group::{ByKey, group};
pub use reduce::{partials, reduce};

use crate::axes::{Axis, Piece, collapse, split};
use crate::kernel::Kind;
use crate::threads::{STRIDED_EACH, UNITS, grid};
use crate::{Kernel, Launch, Words};

/// Plans a copy between strided arrays, in units of 1, 2, 4, 8 or 16 bytes. For a unit of another
/// size, returns no launches.
///
/// Strides are in units and may be negative. `out` and `input` are the addresses of each side's
/// first unit. The two sides must not overlap, and no two written units may overlap. Nothing is
/// checked.
pub fn copy(
    unit: usize,
    shape: &[usize],
    out: u64,
    out_strides: &[isize],
    input: u64,
    in_strides: &[isize],
) -> Vec<Launch> {
    if !UNITS.contains(&unit) {
        return Vec::new();
    }
    let Some(mut axes) = collapse(shape, [out_strides, in_strides], unit) else {
        return Vec::new();
    };
    let unit = widen(unit, &mut axes, [out, input]);
    let launch = |piece: Piece| {
        let (grid, block) = grid(piece.count().div_ceil(STRIDED_EACH));
        let words = Words::new(&piece.words((0, 0), [out, input]));
        Launch { kernel: Kernel(Kind::Copy { unit }), words, grid, block }
    };
    split(&axes).into_iter().map(launch).collect()
}

/// Plans a copy of `count` units of 1, 2, 4, 8 or 16 bytes. The indices are `u32`. Each unit comes
/// from the row of `input` that its index names, or is 0 if the index is not below `rows`. For a
/// unit of another size, returns no launches.
pub fn take(
    unit: usize,
    count: usize,
    out: u64,
    input: u64,
    rows: usize,
    indices: u64,
) -> Vec<Launch> {
    if count == 0 || !UNITS.contains(&unit) {
        return Vec::new();
    }
    let words = Words::new(&[count as u64, out, input, indices, rows as u64]);
    let (grid, block) = grid(count as u64);
    vec![Launch { kernel: Kernel(Kind::Take { unit }), words, grid, block }]
}

/// Makes the units as large as the innermost axis, the strides and the addresses allow. Returns
/// their size.
fn widen(unit: usize, axes: &mut Vec<Axis>, addresses: [u64; 2]) -> usize {
    let Some((inner, outer)) = axes.split_last_mut() else { return unit };
    if inner.strides != [unit as i64; 2] {
        return unit;
    }
    let bytes = inner.length.saturating_mul(unit);
    let fits = |wide: &usize| {
        bytes.is_multiple_of(*wide)
            && addresses.iter().all(|at| at.is_multiple_of(*wide as u64))
            && outer.iter().flat_map(|axis| axis.strides).all(|by| by % *wide as i64 == 0)
    };
    let wide = UNITS.into_iter().rev().find(fits).filter(|wide| *wide > unit).unwrap_or(unit);
    *inner = Axis { length: bytes / wide, strides: [wide as i64; 2] };
    if inner.length == 1 {
        axes.pop();
    }
    wide
}
