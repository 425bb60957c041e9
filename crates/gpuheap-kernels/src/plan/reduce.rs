//! Reductions: passes that make an axis shorter until one element is left.
//!
//! Which elements are added in which order depends on the lengths alone, never on the device, so
//! that sums of floats are the same everywhere.

use crate::kernel::Kind;
use crate::plan::{BLOCK, grid};
use crate::{Kernel, Launch, Reduction, Type, Words};

/// Elements of a row that become one in a pass.
const ROW_CHUNK: usize = 8192;
/// Elements of a column that become one in a pass.
const COLUMN_CHUNK: usize = 256;
/// Up to this length a row is one thread's.
const SHORT_ROW: usize = 32;
/// Up to this length a row is one warp's.
const WARP_ROW: usize = 1024;
/// Threads of a warp.
const WARP: usize = 32;

/// How an axis is reduced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// So many threads for each piece of a row.
    Rows {
        lanes: usize,
    },
    Columns,
}

fn way(n: usize, inner: usize) -> (Way, usize) {
    match n {
        _ if inner != 1 || n <= SHORT_ROW => (Way::Columns, COLUMN_CHUNK),
        ..=WARP_ROW => (Way::Rows { lanes: WARP }, ROW_CHUNK),
        _ => (Way::Rows { lanes: BLOCK as usize }, ROW_CHUNK),
    }
}

/// How long the axis of `n` elements is after one pass; 1 is the end, and what an empty axis
/// becomes.
pub fn partials(_outer: usize, n: usize, inner: usize) -> usize {
    n.div_ceil(way(n, inner).1).max(1)
}

/// One pass of a reduction of the middle axis, `[outer, n, inner]` to `[outer, partials, inner]` of
/// the type [`Reduction::output`]. A further pass takes that type and that length; all of them make
/// the result when the length is 1. An empty axis gives what changes nothing: 0 for sums, the
/// largest value for the smallest.
pub fn reduce(
    op: Reduction,
    of: Type,
    outer: usize,
    n: usize,
    inner: usize,
    out: u64,
    input: u64,
) -> Vec<Launch> {
    let results = (outer as u64)
        .saturating_mul(partials(outer, n, inner) as u64)
        .saturating_mul(inner as u64);
    if results == 0 {
        return Vec::new();
    }
    let (way, chunk) = way(n, inner);
    let sizes = [outer as u64, n as u64, inner as u64, chunk as u64];
    let [outer, n, inner, chunk] = sizes;
    let (kernel, words, threads) = match way {
        Way::Rows { lanes } => {
            let lanes = lanes as u64;
            let words = Words::new(&[outer, n, chunk, lanes, out, input]);
            (Kind::Rows { op, of }, words, results.saturating_mul(lanes))
        }
        Way::Columns => {
            let words = Words::new(&[outer, n, chunk, inner, out, input]);
            (Kind::Columns { op, of }, words, results)
        }
    };
    let (grid, block) = grid(threads);
    vec![Launch { kernel: Kernel(kernel), words, grid, block }]
}
