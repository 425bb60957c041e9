//! Plans of aggregates by key.

use crate::kernel::Kind;
use crate::threads::{BLOCK, SHARED_BYTES, grid};
use crate::{Fold, Kernel, Launch, Type, Words};

/// Maximum number of blocks that keep their own aggregates. Each block ends by adding its
/// aggregates to the result, and that work must stay small.
const MOST_BLOCKS: u64 = 1024;

/// Rows to aggregate by key. `values` has shape `[rows, inner]`, and `out` has shape `[groups,
/// inner]`. The key of a row of `values` names a row of `out`.
#[derive(Clone, Copy, Debug)]
pub struct ByKey {
    /// The aggregate.
    pub fold: Fold,
    /// Type of the values, and their address. If `None`, the rows are counted: `fold` must be
    /// [`Fold::Count`], and `inner` is taken as 1.
    pub values: Option<(Type, u64)>,
    /// Type of the keys, and their address. The type is an integer, and each row has one key.
    pub keys: (Type, u64),
    /// Number of rows.
    pub rows: usize,
    /// Number of values in a row.
    pub inner: usize,
    /// Number of groups.
    pub groups: usize,
    /// Address of the result. The caller fills the result with [`Fold::identity`] before the
    /// launch.
    pub out: u64,
    /// Address of two `u64`: a count of bad rows, and an index. A bad row has a key outside of
    /// `0..groups`. The launch adds the number of bad rows to the count, and lowers the index to
    /// the lowest bad row's index. Bad rows are left out even if this is `None`.
    pub bad: Option<u64>,
    /// Address of a bitmap with one bit for each value, lowest bit of a byte first. Values whose
    /// bit is 0 are left out.
    pub valid: Option<u64>,
    /// For [`Fold::Squares`], the address of the means: an `f64` for each element of `out`.
    pub means: u64,
    /// `true` if NaN values are left out. [`Fold::Min`] and [`Fold::Max`] always leave them out.
    pub skips_nan: bool,
}

/// Plans aggregates by key. Returns no launches if there are no rows, if the keys are not integers,
/// or if the fold needs values and `by.values` is `None`.
pub fn group(by: &ByKey) -> Vec<Launch> {
    let inner = if by.values.is_some() { by.inner } else { 1 };
    let count = (by.rows as u64).saturating_mul(inner as u64);
    let has_values = by.values.is_some() || by.fold == Fold::Count;
    if count == 0 || !by.keys.0.is_integer() || !has_values {
        return Vec::new();
    }
    let slots = by.groups.saturating_mul(inner).max(1);
    let most = SHARED_BYTES / 8;
    let shared = slots <= most;
    // With several copies of a block's aggregates, fewer threads add to the same copy at once.
    let copies = if shared { 1_u64 << (most / slots).min(BLOCK as usize).ilog2() } else { 1 };
    let (of, values) = by.values.unzip();
    let kernel = Kernel(Kind::Groups { shared, fold: by.fold, of, key: by.keys.0 });
    let words = Words::new(&[
        by.rows as u64,
        inner as u64,
        by.groups as u64,
        by.out,
        values.unwrap_or(0),
        by.keys.1,
        by.bad.unwrap_or(0),
        by.valid.unwrap_or(0),
        by.means,
        copies - 1,
        u64::from(by.skips_nan),
    ]);
    let (grid, block) = if shared {
        // Gives each block at least 4 values for each of its aggregates. The addition of the
        // aggregates to the result then stays a small part of the block's work.
        let each = (slots as u64 * copies * 4).max(u64::from(BLOCK) * 8);
        (count.div_ceil(each).clamp(1, MOST_BLOCKS) as u32, BLOCK)
    } else {
        grid(count)
    };
    vec![Launch { kernel, words, grid, block }]
}
