//! Rows of strided arrays.

use crate::plan::axes::Axis;

/// The innermost axis at one place of the outer axes.
pub(crate) struct Row {
    pub(crate) length: usize,
    /// Offsets of its first element in both arrays, bytes.
    pub(crate) offsets: [i64; 2],
    pub(crate) strides: [i64; 2],
}

/// Calls `each` with every row, in row-major order. Without axes there is one row of one element.
pub(crate) fn for_each_row<E>(
    axes: &[Axis],
    mut each: impl FnMut(Row) -> Result<(), E>,
) -> Result<(), E> {
    let one = Axis { length: 1, strides: [0; 2] };
    let (inner, outer) = axes.split_last().unwrap_or((&one, &[]));
    if axes.iter().any(|axis| axis.length == 0) {
        return Ok(());
    }
    let mut at = vec![0; outer.len()];
    let mut offsets = [0_i64; 2];
    loop {
        each(Row { length: inner.length, offsets, strides: inner.strides })?;
        // To reach the next place, the innermost axis with one more place advances, and those
        // inside it start again.
        let mut moved = false;
        for (axis, at) in outer.iter().zip(&mut at).rev() {
            *at += 1;
            moved = *at < axis.length;
            let steps = if moved { 1 } else { 1 - axis.length as i64 };
            offsets = [0, 1].map(|i| offsets[i].wrapping_add(axis.strides[i].wrapping_mul(steps)));
            if moved {
                break;
            }
            *at = 0;
        }
        if !moved {
            return Ok(());
        }
    }
}
