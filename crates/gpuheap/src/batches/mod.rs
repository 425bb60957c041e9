//! Uploads data that is larger than the device, in batches. A batch is freed at the next turn.

mod ahead;
mod rows;
mod source;
mod thread;
mod turn;

use std::fmt;
use std::iter::FusedIterator;
use std::ops::Range;
use std::panic::Location;

use ndarray::{Data, Dimension};

pub use ahead::{Ahead, Uploads};
pub use rows::Rows;
pub use source::{Items, Source};
pub use thread::Feeder;

use crate::adapt::{Adapt, Cu, ElementRule, Narrow, Upload};
use crate::array::Element;
use crate::array::scope::Handle;
use crate::array::target::Target;
use crate::device::Device;
use crate::error::{Error, ErrorKind};
use turn::{Request, Turn};

impl Target {
    /// [Adapts](Target::adapt) the items of an iterator one after another. Each item is uploaded at
    /// its turn, and freed at the turn of the next item.
    ///
    /// ```
    /// # fn main() -> Result<(), gpuheap::Error> {
    /// let target = gpuheap::Device::open("emulated:1GiB")?.heap()?.target()?;
    /// for (nth, batch) in target.batches([[1_i32, 2], [3, 4]]).enumerate() {
    ///     let sum: i32 = batch?.to_vec()?.iter().sum();
    ///     println!("Batch {}: [{sum}]", nth + 1);
    /// #   assert_eq!(sum, [3, 7][nth]);
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// prints `Batch 1: [3]` and `Batch 2: [7]`. See [`Batches`].
    #[track_caller]
    pub fn batches<I>(&self, items: I) -> Batches<Ahead<Items<I::IntoIter>>>
    where
        I: IntoIterator<Item: Adapt<Upload>>,
    {
        let request = Request { target: self.clone(), at: Location::caller() };
        Batches::new(request, Ahead::new(Items::new(items.into_iter()), 0))
    }

    /// Uploads the rows of a host array in batches; a row is an index of the leading axis. A batch
    /// takes at most `fraction` of the memory that the heap may still take. The heap's limit and
    /// the free memory of the device both bound that memory. The cached memory of all heaps of this
    /// process counts as free.
    ///
    /// If a batch does not fit in memory, that batch and all later batches are halved. If a single
    /// row does not fit, the iterator returns an error and ends. See [`Batches`].
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
    /// The fraction is outside of `(0, 1]`; the array has no axis; a driver error.
    #[track_caller]
    pub fn batches_by_memory<'a, T: Element, S: Data<Elem = T>, D: Dimension>(
        &self,
        array: &'a ndarray::ArrayBase<S, D>,
        fraction: f64,
    ) -> Result<Batches<Ahead<Rows<'a, T, D>>>, Error> {
        let request = Request { target: self.clone(), at: Location::caller() };
        Ok(Batches::new(request, Ahead::new(Rows::new(array.view(), self, fraction)?, 0)))
    }
}

impl Device {
    /// Adapts items in batches, as [`Target::batches`] does. The batches are on the device's own
    /// heap and on the stream of that heap.
    ///
    /// # Errors
    ///
    /// The errors of [`Device::heap`] and [`Heap::target`](crate::Heap::target).
    #[track_caller]
    pub fn batches<I>(&self, items: I) -> Result<Batches<Ahead<Items<I::IntoIter>>>, Error>
    where
        I: IntoIterator<Item: Adapt<Upload>>,
    {
        let request = Request { target: self.heap()?.target()?, at: Location::caller() };
        Ok(Batches::new(request, Ahead::new(Items::new(items.into_iter()), 0)))
    }
}

/// Uploaded batches, one at a time. [`Target::batches`] makes them from the items of an iterator,
/// and [`Target::batches_by_memory`] from the rows of an array.
///
/// `Batches` is an iterator of results. If a batch cannot be uploaded, the result is an error, and
/// the next call continues with the next item.
///
/// # Lifetime of a batch
///
/// The next call of `next` frees the memory that was uploaded for a batch, in stream order and
/// without waiting. Dropping the iterator frees that memory too. If a handle to the memory still
/// exists, using the handle returns an error.
///
/// Two kinds of arrays are not freed:
///
/// * Arrays that were on the device already (a [`SharedArray`](crate::SharedArray) that adapting
///   leaves in place).
/// * Arrays that the program computed from a batch, unless they reuse the batch's memory. An
///   operator that consumes the batch, as `batch * 2.0` does, passes the memory on.
///
/// If a batch was uploaded in a [scope](crate::Scope), the end of that scope frees the batch too,
/// even if `next` has not returned it yet, and even if the iterator was forgotten. If the batch was
/// uploaded ahead, `next` then returns an error for that batch.
///
/// ```
/// # fn main() -> Result<(), gpuheap::Error> {
/// let target = gpuheap::Device::open("emulated:1GiB")?.heap()?.target()?;
/// let mut batches = target.batches([[1_i32, 2], [3, 4], [5, 6]]);
/// let first = batches.next().unwrap()?;
/// let copy = first.copy()?; // not freed with the batch
/// let second = batches.next().unwrap()?;
/// let second = batches.keep(second); // moved out of its turn
/// let third = batches.next().unwrap()?;
/// assert!(batches.next().is_none());
/// assert!(first.to_vec().unwrap_err().is_freed());
/// assert!(third.to_vec().unwrap_err().is_freed());
/// assert_eq!((copy.to_vec()?, second.to_vec()?), (vec![1, 2], vec![3, 4]));
/// # Ok(()) }
/// ```
///
/// # Prefetching
///
/// Without prefetching, uploads and computation alternate. Two methods overlap them:
///
/// | | for a loop that | uploads |
/// |---|---|---|
/// | [`prefetch`](Batches::prefetch) | enqueues work and does not wait for it | in `next`, while that work runs |
/// | [`prefetch_on`](Batches::prefetch_on) | waits for results, such as by `to_vec` | on a second thread |
///
/// Both methods return a batch on the target's stream, so the order of work is the same as without
/// prefetching. Only the current batch and the batches uploaded ahead hold memory. The current
/// batch holds its memory until its turn ends, even if the program drops the batch earlier.
///
/// # Element types
///
/// Elements keep their types, unless [`cu`](Batches::cu) or [`narrow`](Batches::narrow) convert
/// them as [`Target::cu`] and [`Target::narrow`] do.
#[must_use = "batches are uploaded when they are iterated over"]
pub struct Batches<U: Uploads> {
    request: Request,
    uploads: U,
    current: Option<Turn>,
    rows: Range<usize>,
}

impl<U: Uploads> Batches<U> {
    fn new(request: Request, uploads: U) -> Batches<U> {
        Batches { request, uploads, current: None, rows: 0..0 }
    }

    /// Keeps an array of the current batch beyond the batch's turn, as
    /// [`Scope::keep`](crate::Scope::keep) does for a scope. The array may also be one that reuses
    /// the batch's memory. Any other array is returned unchanged.
    pub fn keep<A: Handle>(&self, array: A) -> A {
        match &self.current {
            Some(turn) => turn.scope().keep(array),
            None => array,
        }
    }

    fn end_turn(&mut self) {
        self.rows = self.rows.end..self.rows.end;
        if self.current.take().is_some() && self.uploads.is_ahead() {
            self.request.turn_ended();
        }
    }
}

impl<S: Source> Batches<Ahead<S>> {
    /// Uploads up to `count` batches ahead, on a second stream. `next` starts these uploads before
    /// it frees the current batch, so that they overlap with the device's work on that batch. If
    /// all batches take about the same time, one batch ahead is enough; more batches smooth out
    /// differences. Batches of rows become smaller, because all batches on the device share the
    /// fraction of memory given to [`batches_by_memory`](Target::batches_by_memory).
    ///
    /// If memory does not suffice for `count` batches, fewer are uploaded ahead from then on. If
    /// `prefetch` is called several times, the last `count` applies.
    pub fn prefetch(mut self, count: usize) -> Batches<Ahead<S>> {
        self.uploads.most = count;
        self.uploads.source.plan(count.saturating_add(1));
        self
    }
}

impl<I: Iterator<Item: Adapt<Upload>>> Batches<Ahead<Items<I>>> {
    /// Converts numbers to `f32`, by the rules of [`Target::cu`]. If batches were uploaded ahead
    /// before, frees them, and `next` returns an error for each of them.
    pub fn cu(self) -> Batches<Ahead<Items<I, Cu>>>
    where
        I::Item: Adapt<Upload<Cu>>,
    {
        self.with_rule()
    }

    /// Converts 64-bit floats to 32 bits, by the rules of [`Target::narrow`]. Batches that were
    /// uploaded ahead end as by [`cu`](Batches::cu).
    pub fn narrow(self) -> Batches<Ahead<Items<I, Narrow>>>
    where
        I::Item: Adapt<Upload<Narrow>>,
    {
        self.with_rule()
    }

    fn with_rule<R: ElementRule>(self) -> Batches<Ahead<Items<I, R>>>
    where
        I::Item: Adapt<Upload<R>>,
    {
        let Ahead { source, most, ready, .. } = self.uploads;
        let text = "the batch was uploaded before the conversion was set; call cu or narrow before \
                    the first batch";
        let unconverted = || Err(ErrorKind::Ended.error(text.to_owned()));
        let mut uploads = Ahead::new(source.with_rule(), most);
        let failed =
            ready.into_iter().map(|(rows, upload)| (rows, upload.and_then(|_| unconverted())));
        uploads.ready = failed.collect();
        Batches::new(self.request, uploads)
    }
}

impl<R: ElementRule, I: Iterator<Item: Adapt<Upload<R>>>> Batches<Ahead<Items<I, R>>> {
    /// Starts a thread of `scope` that pulls the items and uploads up to `count` batches ahead, on
    /// a second stream. While the program waits for a result, the next batch is being uploaded.
    ///
    /// ```
    /// # fn main() -> Result<(), gpuheap::Error> {
    /// let target = gpuheap::Device::open("emulated:1GiB")?.heap()?.target()?;
    /// let data = vec![1.5_f32; 1000];
    /// let sum = std::thread::scope(|scope| -> Result<f32, gpuheap::Error> {
    ///     let mut sum = 0.0;
    ///     for batch in target.batches(data.chunks(100)).prefetch_on(scope, 2)? {
    ///         sum += batch?.to_vec()?.iter().sum::<f32>();
    ///     }
    ///     Ok(sum)
    /// })?;
    /// assert_eq!(sum, 1500.0);
    /// # Ok(()) }
    /// ```
    ///
    /// The thread ends after the last item. If the batches are dropped, the thread ends after its
    /// current upload. If the batches are forgotten instead, the thread waits forever, and so does
    /// the end of `scope`. If the items' iterator panics, `next` panics once all earlier batches
    /// were handed out. If memory does not suffice for `count` batches, fewer are uploaded ahead
    /// from then on.
    ///
    /// Arrays of the batches belong to the calling thread's [current
    /// scope](crate::Heap::thread_scope), if any. Once that scope has ended, `next` returns errors.
    ///
    /// Batches of rows cannot be uploaded by a thread, because the thread could not take back a
    /// batch that is [halved](Batches::halve).
    ///
    /// # Errors
    ///
    /// The stream or the thread cannot be created. The items are then dropped.
    pub fn prefetch_on<'scope>(
        self,
        scope: &'scope std::thread::Scope<'scope, '_>,
        count: usize,
    ) -> Result<Batches<Feeder<'scope, Items<I, R>>>, Error>
    where
        I: Send + 'scope,
        I::Item: Adapt<Upload<R>, Output: Send + 'scope> + Send,
    {
        let Batches { mut request, uploads, current, rows } = self;
        // The new thread does not have the calling thread's scopes, so the target takes the current
        // scope along.
        let within = request.target.scope();
        request.target = request.target.within(within);
        let uploads = Feeder::start(scope, uploads, &request, count)?;
        Ok(Batches { request, uploads, current, rows })
    }
}

impl<T: Element, D: Dimension> Batches<Ahead<Rows<'_, T, D>>> {
    /// Returns the rows of the current batch. If `next` returned an error, returns the rows that
    /// could not be uploaded. The range is empty before the first batch and after the last.
    pub fn rows(&self) -> Range<usize> {
        self.rows.clone()
    }

    /// Frees the current batch and halves the batch size. Call it if work on the batch ran out of
    /// memory. The rows of the batch are returned again, in batches of half as many rows; later
    /// batches have that size too.
    ///
    /// ```
    /// # fn main() -> Result<(), gpuheap::Error> {
    /// # let device = gpuheap::Device::open("emulated:1GiB")?;
    /// # let heap = gpuheap::Heap::builder(&device).hard_limit(64 << 20).build()?;
    /// # let data = gpuheap::ndarray::Array1::from_elem(16 << 20, 1_u8);
    /// let mut batches = heap.target()?.batches_by_memory(&data, 1.0)?;
    /// while let Some(batch) = batches.next() {
    ///     let work = |batch: &gpuheap::DeviceArray<u8>| -> Result<(), gpuheap::Error> {
    ///         let four = [(); 4].map(|()| batch.copy()); // more than the limit
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
    /// No batch is current; or the current batch has only one row, and then stays current.
    pub fn halve(&mut self) -> Result<(), Error> {
        if self.current.is_none() {
            return Err(ErrorKind::Ended.error(
                "there is no batch to give back; call halve while working on one".to_owned(),
            ));
        }
        let start = self.rows.start;
        self.uploads.source.halve(self.rows.clone())?;
        self.uploads.ready.clear();
        self.end_turn();
        self.rows = start..start;
        Ok(())
    }
}

impl<U: Uploads> Iterator for Batches<U> {
    type Item = Result<U::Batch, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Err(error) = self.uploads.prepare(&self.request, self.current.is_some()) {
            return Some(Err(error));
        }
        self.end_turn();
        let (rows, uploaded) = self.uploads.take(&self.request)?;
        self.rows = rows;
        let is_held = self.uploads.is_ahead();
        let begun = uploaded.and_then(|batch| batch.begin(&self.request, is_held));
        Some(begun.map(|(value, turn)| {
            self.current = Some(turn);
            value
        }))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.uploads.size_hint()
    }
}

impl<R: ElementRule, I> ExactSizeIterator for Batches<Ahead<Items<I, R>>> where
    I: ExactSizeIterator<Item: Adapt<Upload<R>>>
{
}

impl<R: ElementRule, I> ExactSizeIterator for Batches<Feeder<'_, Items<I, R>>> where
    I: ExactSizeIterator<Item: Adapt<Upload<R>>>
{
}

impl<U: Uploads> FusedIterator for Batches<U> {}

impl<U: Uploads> fmt::Debug for Batches<U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (file, line) = (self.request.at.file(), self.request.at.line());
        write!(f, "batches requested at {file}:{line}")
    }
}
