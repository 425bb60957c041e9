//! Batches of an array's rows, sized by the available memory.

use std::collections::VecDeque;
use std::fmt;
use std::iter::FusedIterator;
use std::ops::Range;
use std::panic::Location;

use gpuheap_pool::GRANULE;
use ndarray::{ArrayView, Axis, Data, Dimension, Slice};

use super::turn::{Asked, Batch, Turn, ran_out};
use crate::array::scope::Handle;
use crate::array::target::Target;
use crate::array::{DeviceArray, Element};
use crate::error::{Error, ErrorKind, Fault};
use crate::size::Bytes;
use crate::stream::Stream;

impl Target {
    /// Uploads the rows of a host array (its leading axis) in batches. A batch takes at most
    /// `fraction` of the memory that the heap may still take: the rest of its limit and of the
    /// device, counting the cached memory of all heaps of this process as free. If memory runs out
    /// all the same, batches shrink. See [`RowBatches`].
    ///
    /// ```
    /// # fn main() -> Result<(), gpuheap::Error> {
    /// use gpuheap::ndarray::Array2;
    ///
    /// let device = gpuheap::Device::open("emulated:1GiB")?;
    /// let heap = gpuheap::Heap::builder(&device).hard_limit(64 << 20).build()?;
    /// let data = Array2::from_elem((100_000, 250), 1.0_f32); // 95 MiB
    /// let mut sum = 0.0;
    /// for batch in heap.target()?.batches_by_memory(&data, 0.5)? {
    ///     sum += batch?.to_vec()?.iter().sum::<f32>();
    /// }
    /// assert_eq!(sum, 25e6);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The fraction is not above 0 and at most 1; the array has no axis; a driver error.
    #[track_caller]
    pub fn batches_by_memory<'a, T: Element, S: Data<Elem = T>, D: Dimension>(
        &self,
        array: &'a ndarray::ArrayBase<S, D>,
        fraction: f64,
    ) -> Result<RowBatches<'a, T, D>, Error> {
        let at = Location::caller();
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
        let share = (self.heap().room(self.memory_kind())? as f64 * fraction) as u64;
        let elements = (array.len() / total.max(1)) as u64;
        let row = elements.saturating_mul(size_of::<T>() as u64);
        let (array, asked) = (array.view(), Asked { target: self.clone(), at });
        let ahead = VecDeque::new();
        let mut batches = RowBatches {
            asked,
            array,
            total,
            row,
            share,
            chunk: total,
            begun: 0,
            ahead,
            most: 0,
            side: None,
            current: None,
            rows: 0..0,
        };
        batches.choose();
        Ok(batches)
    }
}

/// Batches of an array's rows. From [`Target::batches_by_memory`].
///
/// An iterator of results. Each is a [`DeviceArray`] of the rows [`rows`](RowBatches::rows). It is
/// freed when the next batch's turn comes, as with [`Batches`](crate::Batches). If a batch does not
/// fit in memory, that batch and all later ones have half the rows. If a single row does not fit,
/// the iterator returns an error and ends.
#[must_use = "batches are uploaded when they are iterated over"]
pub struct RowBatches<'a, T, D> {
    asked: Asked,
    array: ArrayView<'a, T, D>,
    /// Number of rows.
    total: usize,
    /// Bytes of a row.
    row: u64,
    /// Bytes that all batches on the device may take together.
    share: u64,
    /// Rows of a batch.
    chunk: usize,
    /// The first row that was not uploaded yet.
    begun: usize,
    ahead: VecDeque<(Range<usize>, Uploaded<T, D>)>,
    most: usize,
    side: Option<Stream>,
    current: Option<Turn>,
    /// Rows of the current batch.
    rows: Range<usize>,
}

type Uploaded<T, D> = Result<Batch<DeviceArray<T, D>>, Error>;

impl<T: Element, D: Dimension> RowBatches<'_, T, D> {
    /// Uploads up to `count` batches ahead, as [`Batches::prefetch`](crate::Batches::prefetch)
    /// does. All batches on the device share the fraction, so each is smaller. There is no
    /// `prefetch_on`, because a thread that uploads ahead could not take a halved batch back.
    pub fn prefetch(mut self, count: usize) -> Self {
        self.most = count;
        self.choose();
        self
    }

    /// Returns the rows of the current batch. If `next` returned an error, they are the rows that
    /// could not be uploaded. Empty before the first batch and after the last.
    pub fn rows(&self) -> Range<usize> {
        self.rows.clone()
    }

    /// Frees the current batch and halves the batch size, for work on the batch that ran out of
    /// memory. The rows of the batch come again, in batches of half as many rows, as do all later
    /// rows.
    ///
    /// ```
    /// # fn main() -> Result<(), gpuheap::Error> {
    /// # let device = gpuheap::Device::open("emulated:1GiB")?;
    /// # let heap = gpuheap::Heap::builder(&device).hard_limit(64 << 20).build()?;
    /// # let data = gpuheap::ndarray::Array1::from_elem(16 << 20, 1_u8);
    /// let mut batches = heap.target()?.batches_by_memory(&data, 1.0)?;
    /// while let Some(batch) = batches.next() {
    ///     let work = |batch: &gpuheap::DeviceArray<u8>| -> Result<(), gpuheap::Error> {
    ///         let four = [(); 4].map(|()| batch.copy()); // more than there is
    ///         four.into_iter().try_for_each(|copy| copy.map(drop))
    ///     };
    ///     match work(&batch?) {
    ///         Err(error) if error.out_of_memory().is_some() => batches.halve()?,
    ///         done => done?,
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The batch has one row (it then stays the current one); there is no current batch.
    pub fn halve(&mut self) -> Result<(), Error> {
        if self.current.is_none() || self.rows.len() < 2 {
            let (kind, why) = match &self.current {
                None => (
                    ErrorKind::Ended,
                    "there is no batch to give back; call halve while working on one".to_owned(),
                ),
                Some(_) => (
                    ErrorKind::WrongShape,
                    format!(
                        "a batch of {} row of {} cannot be halved; free memory, or split the array \
                         along another axis",
                        self.rows.len(),
                        Bytes(self.row)
                    ),
                ),
            };
            return Err(kind.error(why));
        }
        self.ahead.clear();
        self.chunk = self.rows.len().div_ceil(2);
        self.begun = self.rows.start;
        self.end_turn();
        Ok(())
    }

    /// Keeps an array beyond the batch's turn, as [`Batches::keep`](crate::Batches::keep) does.
    pub fn keep<A: Handle>(&self, array: A) -> A {
        match &self.current {
            Some(turn) => turn.scope().keep(array),
            None => array,
        }
    }

    /// Chooses the number of rows such that all batches on the device take their share together.
    fn choose(&mut self) {
        let mut each = self.share / (self.most as u64).saturating_add(1);
        if each >= GRANULE {
            // The driver hands out whole granules.
            each -= each % GRANULE;
        }
        let rows = each.checked_div(self.row).unwrap_or(u64::MAX);
        self.chunk = usize::try_from(rows).unwrap_or(usize::MAX).clamp(1, self.total.max(1));
    }

    fn end_turn(&mut self) {
        self.rows = self.begun..self.begun;
        if self.current.take().is_some() && self.most > 0 {
            self.asked.turn_ended();
        }
    }

    /// Returns the rows of the next batch.
    fn next_rows(&self) -> Option<Range<usize>> {
        let end = self.begun.saturating_add(self.chunk).min(self.total);
        (self.begun < self.total).then_some(self.begun..end)
    }

    fn upload(&self, rows: &Range<usize>, side: Option<&Stream>) -> Uploaded<T, D> {
        let rows = self.array.slice_axis(Axis(0), Slice::from(rows.clone()));
        self.asked.upload(side, |target| {
            target.uninit_at(rows.raw_dim(), self.asked.at)?.write_from(&rows)
        })
    }

    /// Uploads ahead, while the device works on the current batch.
    fn fill(&mut self) {
        while self.ahead.len() < self.most
            && let Some(rows) = self.next_rows()
        {
            // Without a second stream, rows are uploaded at their turn.
            let Ok(side) = self.side() else { return self.most = self.ahead.len() };
            let uploaded = self.upload(&rows, Some(&side));
            if ran_out(&uploaded) {
                return self.most = self.ahead.len();
            }
            self.begun = rows.end;
            self.ahead.push_back((rows, uploaded));
        }
    }

    fn side(&mut self) -> Result<Stream, Error> {
        let side = match self.side.take() {
            Some(side) => side,
            None => self.asked.target.stream().device().stream()?,
        };
        Ok(self.side.insert(side).clone())
    }

    /// Uploads as many of the next rows as fit in memory.
    fn upload_next(&mut self) -> Option<(Range<usize>, Uploaded<T, D>)> {
        loop {
            let rows = self.next_rows()?;
            let uploaded = self.upload(&rows, None);
            if !ran_out(&uploaded) {
                self.begun = rows.end;
                return Some((rows, uploaded));
            }
            if rows.len() == 1 {
                self.begun = self.total;
                return Some((
                    rows.clone(),
                    uploaded.map_err(|error| too_large(error, rows.start)),
                ));
            }
            self.chunk = rows.len() / 2;
        }
    }
}

/// Returns the error for a row that does not fit in memory.
fn too_large(error: Error, row: usize) -> Error {
    match error.out_of_memory() {
        Some(evidence) => Fault::Row(row, evidence.clone()).into(),
        None => error,
    }
}

impl<T: Element, D: Dimension> Iterator for RowBatches<'_, T, D> {
    type Item = Result<DeviceArray<T, D>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.current.is_some() {
            self.fill();
        }
        self.end_turn();
        let (rows, uploaded) = match self.ahead.pop_front() {
            Some(uploaded) => uploaded,
            None => self.upload_next()?,
        };
        let begun = uploaded.and_then(|batch| batch.begin(&self.asked, self.most > 0));
        self.rows = rows;
        Some(begun.map(|(array, turn)| {
            self.current = Some(turn);
            array
        }))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let (ahead, left) = (self.ahead.len(), self.total - self.begun);
        // If the size is halved again, there may be as many batches as rows; the last item may be
        // an error.
        (ahead + usize::from(left > 0), Some(ahead + left))
    }
}

impl<T: Element, D: Dimension> FusedIterator for RowBatches<'_, T, D> {}

impl<T, D: Dimension> fmt::Debug for RowBatches<'_, T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RowBatches { asked, total, chunk, rows, .. } = self;
        let (file, line) = (asked.at.file(), asked.at.line());
        write!(f, "rows {rows:?} of {total}, {chunk} a batch, asked for at {file}:{line}")
    }
}
