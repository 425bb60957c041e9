//! Sums by key.

use crate::kernel::Kind;
use crate::threads::{BLOCK, SHARED_BYTES, grid};
use crate::{Kernel, Launch, Type, Words};

/// Maximum number of blocks that keep their own sums. Each block adds all its sums to the result at
/// its end, and that work must stay small.
const MOST_BLOCKS: u64 = 1024;

/// Plans sums by key. Each row of `values`, shape `[rows, inner]`, has a key that names a row of
/// `out`, shape `[groups, inner]`. The row of `values` is added to that row of `out`.
///
/// `keys` has one key of an integer type for each row. `out` has the type of
/// [`Reduction::Sum`](crate::Reduction) and must be zeroed before. If there are no values, each row
/// counts 1, and `inner` is 1.
///
/// Rows with a key outside of `0..groups` are left out. `bad` is the address of two `u64`. The
/// number of left-out rows is added to the first one. If the index of the first left-out row is
/// less than the second one, the index replaces it.
#[expect(clippy::too_many_arguments, reason = "two tables, their shape, and where the result goes")]
pub fn group_sum(
    of: Type,
    key: Type,
    rows: usize,
    inner: usize,
    groups: usize,
    out: u64,
    values: Option<u64>,
    keys: u64,
    bad: u64,
) -> Vec<Launch> {
    let inner = if values.is_some() { inner } else { 1 };
    let count = (rows as u64).saturating_mul(inner as u64);
    if count == 0 || !key.is_integer() {
        return Vec::new();
    }
    let slots = groups.saturating_mul(inner);
    let shared = slots.saturating_mul(8) <= SHARED_BYTES;
    let kernel = Kernel(Kind::Groups { shared, of: values.map(|_| of), key });
    let sizes = [rows as u64, inner as u64, groups as u64];
    let words = Words::new(&[sizes[0], sizes[1], sizes[2], out, values.unwrap_or(0), keys, bad]);
    let (grid, block) = if shared {
        // Each block works on several times as many values as the number of sums it adds at its
        // end.
        let each = (slots as u64 * 4).max(u64::from(BLOCK) * 8);
        (count.div_ceil(each).clamp(1, MOST_BLOCKS) as u32, BLOCK)
    } else {
        grid(count)
    };
    vec![Launch { kernel, words, grid, block }]
}
