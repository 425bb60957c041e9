//! Makes batches from the rows of an array, and sizes them by the available memory.

use std::ops::Range;

use gpuheap_pool::GRANULE;
use ndarray::{ArrayView, Axis, Dimension, Slice};

use super::source::Source;
use crate::Caller;
use crate::array::target::Target;
use crate::array::{DeviceArray, Element};
use crate::error::{Error, ErrorKind, Fault};
use crate::size::Bytes;

/// Source of batches from the rows of an array. [`Target::batches_by_memory`] makes it.
pub struct Rows<'a, T, D> {
    array: ArrayView<'a, T, D>,
    total: usize,
    /// Size of a row in bytes.
    row: u64,
    /// Maximum number of bytes that all batches on the device may take together.
    share: u64,
    chunk: usize,
    /// Index of the first row of the next batch.
    begun: usize,
}

impl<'a, T: Element, D: Dimension> Rows<'a, T, D> {
    pub(super) fn new(
        array: ArrayView<'a, T, D>,
        target: &Target,
        fraction: f64,
    ) -> Result<Rows<'a, T, D>, Error> {
        if !(fraction > 0.0 && fraction <= 1.0) {
            return Err(ErrorKind::InvalidArgument.error(format!(
                "{fraction} is no part of the memory that batches could take; write one above 0 and \
                 at most 1, such as 0.5"
            )));
        }
        let Some(&total) = array.shape().first() else {
            return Err(ErrorKind::WrongShape.error(
                "an array with no axis has no rows to make batches of; upload it with array"
                    .to_owned(),
            ));
        };
        let share = (target.heap().room(target.memory_kind())? as f64 * fraction) as u64;
        let elements = (array.len() / total.max(1)) as u64;
        let row = elements.saturating_mul(size_of::<T>() as u64);
        let mut rows = Rows { array, total, row, share, chunk: total, begun: 0 };
        rows.plan(1);
        Ok(rows)
    }

    /// Halves the batch size, and returns to the start of `rows`, the rows of the current batch.
    pub(super) fn halve(&mut self, rows: Range<usize>) -> Result<(), Error> {
        if rows.len() < 2 {
            return Err(ErrorKind::WrongShape.error(format!(
                "a batch of {} row of {} cannot be halved; free memory, or split the array along \
                 another axis",
                rows.len(),
                Bytes(self.row)
            )));
        }
        (self.begun, self.chunk) = (rows.start, rows.len().div_ceil(2));
        Ok(())
    }
}

impl<T: Element, D: Dimension> Source for Rows<'_, T, D> {
    type Piece = Range<usize>;
    type Batch = DeviceArray<T, D>;

    fn next_piece(&mut self) -> Option<Range<usize>> {
        let rows = self.begun..self.begun.saturating_add(self.chunk).min(self.total);
        self.begun = rows.end;
        (!rows.is_empty()).then_some(rows)
    }

    fn put_back(&mut self, rows: Range<usize>) {
        self.begun = rows.start;
    }

    fn split(&mut self, rows: Range<usize>, error: Error) -> Option<Error> {
        if rows.len() > 1 {
            (self.begun, self.chunk) = (rows.start, rows.len() / 2);
            return None;
        }
        self.begun = self.total;
        Some(match error.out_of_memory() {
            Some(evidence) => Fault::Row(rows.start, evidence.clone()).into(),
            None => error,
        })
    }

    fn plan(&mut self, count: usize) {
        let mut each = self.share / (count as u64).max(1);
        if each >= GRANULE {
            // The driver's allocations are whole granules, so the size is rounded down to granules.
            each -= each % GRANULE;
        }
        let rows = each.checked_div(self.row).unwrap_or(u64::MAX);
        self.chunk = usize::try_from(rows).unwrap_or(usize::MAX).clamp(1, self.total.max(1));
    }

    fn upload(
        &self,
        rows: &Range<usize>,
        target: &Target,
        at: Caller,
    ) -> Result<DeviceArray<T, D>, Error> {
        let rows = self.array.slice_axis(Axis(0), Slice::from(rows.clone()));
        target.uninit_at(rows.raw_dim(), at)?.write_from(&rows)
    }

    fn rows(&self, rows: &Range<usize>) -> Range<usize> {
        rows.clone()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.total - self.begun;
        // The size of a batch may be halved down to one row, so each row left may become a batch.
        (usize::from(left > 0), Some(left))
    }
}
