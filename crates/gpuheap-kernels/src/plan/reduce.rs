//! Plans reductions. Each pass shortens an axis, until one element is left.
//!
//! The order in which elements are added depends on the lengths alone, never on the device. Sums of
//! floats are therefore equal everywhere.

use crate::kernel::Kind;
use crate::threads::{BLOCK, grid};
use crate::{Kernel, Launch, Reduction, Type, Words};

/// Number of elements of a row that one pass reduces to one element.
const ROW_CHUNK: u64 = 8192;
/// Number of elements of a column that one pass reduces to one element.
const COLUMN_CHUNK: u64 = 256;
/// Longest row, in elements, that one thread reduces.
const SHORT_ROW: u64 = 32;
/// Longest row, in elements, that one warp reduces.
const WARP_ROW: u64 = 1024;
/// Number of threads in a warp.
const WARP: u64 = 32;

/// How an axis is reduced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// Divides each row into pieces. `lanes` threads reduce one piece together.
    Rows {
        lanes: u64,
    },
    Columns,
}

fn way(n: u64, inner: u64) -> (Way, u64) {
    match n {
        _ if inner != 1 || n <= SHORT_ROW => (Way::Columns, COLUMN_CHUNK),
        ..=WARP_ROW => (Way::Rows { lanes: WARP }, ROW_CHUNK),
        _ => (Way::Rows { lanes: u64::from(BLOCK) }, ROW_CHUNK),
    }
}

/// Returns the length to which one pass reduces an axis of `n` elements. The reduction ends at
/// length 1. After one pass, an empty axis has length 1.
pub fn partials(n: usize, inner: usize) -> usize {
    let (_, chunk) = way(n as u64, inner as u64);
    n.div_ceil(chunk as usize).max(1)
}

/// Plans one pass of a reduction of the middle axis. The pass reads shape `[outer, n, inner]` and
/// writes shape `[outer, partials, inner]`, of the type [`Reduction::output`].
///
/// The next pass reads the type and shape that this pass wrote. The last pass leaves length 1. An
/// empty axis gives the operation's neutral value: 0 for sums, the largest value of the type for
/// minima.
pub fn reduce(
    op: Reduction,
    of: Type,
    outer: usize,
    n: usize,
    inner: usize,
    out: u64,
    input: u64,
) -> Vec<Launch> {
    let pieces = partials(n, inner) as u64;
    let [outer, n, inner] = [outer, n, inner].map(|length| length as u64);
    let results = outer.saturating_mul(pieces).saturating_mul(inner);
    if results == 0 {
        return Vec::new();
    }
    let (way, chunk) = way(n, inner);
    let (kernel, width, threads) = match way {
        Way::Rows { lanes } => (Kind::Rows { op, of }, lanes, results.saturating_mul(lanes)),
        Way::Columns => (Kind::Columns { op, of }, inner, results),
    };
    let words = Words::new(&[outer, n, chunk, pieces, width, out, input]);
    let (grid, block) = grid(threads);
    vec![Launch { kernel: Kernel(kernel), words, grid, block }]
}
