//! Sizes of cuSPARSE's work areas, bytes.
//!
//! The rules were found from 96,000 sizes that cuSPARSE 12.6.3 returned on an H200 (2026-11-24),
//! and from the allocations of 280 products in PyTorch 2.11. The matrices had 1 to 1,000,000 rows
//! and up to 5,000,000 values.

/// Arrangement of a matrix in memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    Dense { by_rows: bool },
    Rows,
    Coordinates,
}

/// Matrix or vector of a product.
#[derive(Clone, Copy)]
pub(crate) struct Operand {
    pub(crate) layout: Layout,
    pub(crate) rows: u64,
    pub(crate) columns: u64,
    /// Number of values of a sparse matrix.
    pub(crate) values: u64,
    /// Size of one index of a sparse matrix, in bytes.
    pub(crate) index: u64,
    /// Bytes of a value.
    pub(crate) value: u64,
}

impl Operand {
    /// Returns the workspace for multiplying by a dense matrix of `columns` columns, in bytes. For
    /// up to 100 values of the sparse matrix, the result is wrong by less than 32 bytes.
    pub(crate) fn times_dense(&self, columns: u64, by_rows: bool, algorithm: i32) -> u64 {
        const DEFAULT: i32 = 0;
        const ROWS_2: i32 = 6;
        if self.layout != Layout::Rows || self.values == 0 {
            return 0;
        }
        if columns == 1 {
            return self.times_vector();
        }
        let part = match algorithm {
            ROWS_2 => 6,
            DEFAULT if by_rows => 6,
            _ => 64,
        };
        self.values * self.index / 4 / part + 7
    }

    /// Returns the workspace for multiplying by a vector, in bytes. The workspace on an H200
    /// differed from this size by at most 0.02 bytes for each stored value of the matrix.
    pub(crate) fn times_vector(&self) -> u64 {
        if self.values == 0 {
            return 0;
        }
        let sums = if self.value == 2 { 4 * self.rows } else { 0 };
        let area = self.values * self.index * self.value.max(4) / 4096 + 15;
        sums + area + if self.layout == Layout::Coordinates { area + 512 } else { 0 }
    }

    /// Returns the workspace for solving a triangular system for `columns` columns, in bytes.
    pub(crate) fn solve(&self, columns: u64) -> u64 {
        let row = 28 + 4 * self.index + 2 * self.value + self.value * columns.saturating_sub(1);
        row * self.rows + (self.index + self.value) * self.values + 242
    }

    /// Returns the expected number of additions for multiplying by the sparse matrix `right`, if
    /// the values of both matrices are at random places.
    fn additions(&self, right: &Operand) -> u64 {
        let additions = u128::from(self.values) * u128::from(right.values);
        (additions / u128::from(right.rows.max(1))) as u64
    }

    /// Estimates the number of values after multiplying by `right`. Assumes that the values are at
    /// random places, because the emulator does not read the places from device memory.
    pub(crate) fn product_values(&self, right: &Operand) -> u64 {
        let places = self.rows as f64 * right.columns as f64;
        let additions = self.additions(right) as f64;
        (places * -f64::exp_m1(-additions / places.max(1.0))) as u64
    }

    /// Returns the two workspaces for multiplying by a sparse matrix, in bytes.
    pub(crate) fn times_sparse(&self, right: &Operand) -> [u64; 2] {
        [12 * self.values + 1024, (16 + 2 * self.value) * self.additions(right) + 1024]
    }
}

/// Returns the workspace for sorting a sparse matrix's values, each of `bytes` bytes.
pub(crate) fn sort(values: u64, bytes: u64) -> u64 {
    bytes * values + 1100
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operand(layout: Layout, [rows, columns, values]: [u64; 3], index: u64) -> Operand {
        Operand { layout, rows, columns, values, index, value: 4 }
    }

    #[test]
    fn areas_are_near_h200() {
        let narrow = operand(Layout::Rows, [20_000, 30_000, 499_800], 4);
        let wide = Operand { index: 8, ..narrow };
        let square = operand(Layout::Rows, [4096, 4096, 99_692], 4);
        let double = Operand { value: 8, index: 4, ..square };
        for (rule, measured) in [
            (narrow.times_dense(16, true, 4), 7819),
            (wide.times_dense(16, true, 6), 166_607),
            (narrow.times_dense(16, true, 0), 83_303),
            (operand(Layout::Coordinates, [9, 9, 50], 4).times_dense(4, true, 0), 0),
            (operand(Layout::Rows, [1_000_000, 1_000_000, 5_000_000], 4).solve(1), 92_000_242),
            (operand(Layout::Rows, [1_000_000, 1_000_000, 0], 4).solve(16), 112_000_242),
            (operand(Layout::Rows, [100_000, 100_000, 999_954], 8).solve(32), 31_199_778),
            (square.times_sparse(&square)[0], 1_198_907),
            (square.times_sparse(&square)[1], 58_293_295),
            (double.times_sparse(&double)[1], 77_714_535),
            (square.product_values(&square), 2_259_442),
            (sort(1_000_000, 20), 20_008_832),
        ] {
            assert!(rule.abs_diff(measured) <= measured / 400, "{rule}, and not {measured}");
        }
    }
}
