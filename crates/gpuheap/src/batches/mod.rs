//! Data larger than the device: uploaded in batches, each freed before the next.

mod by_memory;
mod prefetch;
mod turn;

use std::collections::VecDeque;
use std::fmt;
use std::iter::FusedIterator;
use std::marker::PhantomData;
use std::panic::Location;

pub use by_memory::RowBatches;
pub use prefetch::FedBatches;

use crate::adapt::{Adapt, Cu, ElementRule, Narrow, Same, Upload};
use crate::array::scope::Handle;
use crate::array::target::Target;
use crate::device::Device;
use crate::error::Error;
use crate::stream::Stream;
use turn::{Asked, Batch, Turn, ran_out};

impl Target {
    /// [Adapts](Target::adapt) the items of an iterator one after another. Each is uploaded at its
    /// turn, and freed at the turn of the next one.
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
    pub fn batches<I>(&self, items: I) -> Batches<I::IntoIter>
    where
        I: IntoIterator<Item: Adapt<Upload>>,
    {
        let asked = Asked { target: self.clone(), at: Location::caller() };
        Batches::new(asked, items.into_iter())
    }
}

impl Device {
    /// Adapts items in batches on the device's own heap and that heap's own stream, as
    /// [`Target::batches`] does.
    ///
    /// # Errors
    ///
    /// The errors of [`Device::heap`] and [`Heap::target`](crate::Heap::target).
    #[track_caller]
    pub fn batches<I>(&self, items: I) -> Result<Batches<I::IntoIter>, Error>
    where
        I: IntoIterator<Item: Adapt<Upload>>,
    {
        let asked = Asked { target: self.heap()?.target()?, at: Location::caller() };
        Ok(Batches::new(asked, items.into_iter()))
    }
}

/// The adapted items of an iterator, one at a time. From [`Target::batches`].
///
/// An iterator of results. If a batch cannot be uploaded, the result is an error, and the next call
/// continues with the next item.
///
/// # Lifetime of a batch
///
/// The next call of `next` frees the memory that was uploaded for a batch, in stream order and
/// without waiting. Dropping the iterator does so too. Handles to that memory that still exist
/// return an error when they are used.
///
/// Two kinds of arrays are not freed:
///
/// * Arrays that were on the device already (a [`SharedArray`](crate::SharedArray) that adapting
///   leaves in place).
/// * Arrays that the program computed from a batch, unless they reuse the batch's memory. An
///   operator that consumes the batch, as `batch * 2.0` does, passes the memory on.
///
/// The end of the [scope](crate::Scope) that a batch was uploaded in frees it too, even before its
/// turn and even if the iterator was forgotten. A batch that was uploaded ahead is then an error.
///
/// ```
/// # fn main() -> Result<(), gpuheap::Error> {
/// let target = gpuheap::Device::open("emulated:1GiB")?.heap()?.target()?;
/// let mut batches = target.batches([[1_i32, 2], [3, 4], [5, 6]]);
/// let first = batches.next().unwrap()?;
/// let copy = first.copy()?; // made of a batch: not freed with it
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
/// Without prefetching, uploads and computation alternate:
///
/// | | for a loop that | uploads |
/// |---|---|---|
/// | [`prefetch`](Batches::prefetch) | enqueues work and does not wait for it | in `next`, while that work runs |
/// | [`prefetch_on`](Batches::prefetch_on) | waits for results, such as by `to_vec` | on a thread of its own |
///
/// Both hand a batch out on the target's stream, so the order of work is the same as without
/// prefetching. Only the current batch and those uploaded ahead hold memory. The current batch
/// holds it until its turn ends, even if the program drops the batch earlier.
///
/// # Element types
///
/// Elements keep their types, unless [`cu`](Batches::cu) or [`narrow`](Batches::narrow) convert
/// them as [`Target::cu`] and [`Target::narrow`] do.
#[must_use = "batches are uploaded when they are iterated over"]
pub struct Batches<I, R = Same>
where
    I: Iterator<Item: Adapt<Upload<R>>>,
{
    asked: Asked,
    items: I,
    /// `true` if the iterator of items has ended.
    is_over: bool,
    /// An item whose upload ahead of its turn ran out of memory.
    parked: Option<I::Item>,
    /// Batches uploaded ahead.
    ahead: VecDeque<Uploaded<I::Item, R>>,
    /// Most batches that may be uploaded ahead.
    most: usize,
    /// Stream of the uploads ahead.
    side: Option<Stream>,
    current: Option<Turn>,
    rule: PhantomData<fn() -> R>,
}

/// Result of an item's upload.
type Uploaded<T, R> = Result<Batch<<T as Adapt<Upload<R>>>::Output>, Error>;

impl<I: Iterator<Item: Adapt<Upload>>> Batches<I> {
    fn new(asked: Asked, items: I) -> Batches<I> {
        Batches::with_rule(asked, items, 0)
    }

    /// Converts numbers to `f32`, by the rules of [`Target::cu`]. Call it before the first batch:
    /// batches uploaded ahead until then are freed and not uploaded again.
    pub fn cu(self) -> Batches<I, Cu>
    where
        I::Item: Adapt<Upload<Cu>>,
    {
        self.ruled()
    }

    /// Converts 64-bit floats to 32 bits, by the rules of [`Target::narrow`]. Call it before the
    /// first batch, for the reason given at [`cu`](Batches::cu).
    pub fn narrow(self) -> Batches<I, Narrow>
    where
        I::Item: Adapt<Upload<Narrow>>,
    {
        self.ruled()
    }
}

impl<I: Iterator<Item: Adapt<Upload>>> Batches<I> {
    fn ruled<R: ElementRule>(self) -> Batches<I, R>
    where
        I::Item: Adapt<Upload<R>>,
    {
        let Batches { asked, items, is_over, parked, most, .. } = self;
        Batches { is_over, parked, ..Batches::with_rule(asked, items, most) }
    }
}

impl<R: ElementRule, I: Iterator<Item: Adapt<Upload<R>>>> Batches<I, R> {
    fn with_rule(asked: Asked, items: I, most: usize) -> Batches<I, R> {
        Batches {
            asked,
            items,
            is_over: false,
            parked: None,
            ahead: VecDeque::new(),
            most,
            side: None,
            current: None,
            rule: PhantomData,
        }
    }

    /// Uploads up to `count` batches ahead, on a second stream. `next` starts these uploads before
    /// the turn of the current batch ends, so that they run beside the device's work on it. One
    /// batch ahead is enough if all batches take about as long; more smooth out differences.
    ///
    /// If memory runs out for that many, fewer are uploaded ahead from then on. If it is called
    /// several times, the last `count` applies.
    pub fn prefetch(self, count: usize) -> Batches<I, R> {
        Batches { most: count, ..self }
    }

    /// Keeps an array of the current batch, or one that reuses its memory, beyond the batch's turn,
    /// as [`Scope::keep`](crate::Scope::keep) does for a scope. Any other array is returned
    /// unchanged.
    pub fn keep<A: Handle>(&self, array: A) -> A {
        match &self.current {
            Some(turn) => turn.scope().keep(array),
            None => array,
        }
    }

    fn item(&mut self) -> Option<I::Item> {
        if let Some(item) = self.parked.take() {
            return Some(item);
        }
        if self.is_over {
            return None;
        }
        let item = self.items.next();
        self.is_over = item.is_none();
        item
    }

    /// Uploads ahead, while the device works on the current batch.
    fn fill(&mut self) {
        while self.ahead.len() < self.most {
            // Without a second stream, each item is uploaded at its turn.
            let Ok(side) = self.side() else { return self.most = self.ahead.len() };
            let Some(item) = self.item() else { return };
            let upload = |target: &Target| upload::<R, _>(&item, target, &self.asked);
            let uploaded = self.asked.upload(Some(&side), upload);
            if ran_out(&uploaded) {
                // Memory may suffice at the item's turn. A new attempt at every turn would take the
                // time that prefetching is to save.
                self.most = self.ahead.len();
                self.parked = Some(item);
                return;
            }
            self.ahead.push_back(uploaded);
        }
    }

    fn side(&mut self) -> Result<Stream, Error> {
        let side = match self.side.take() {
            Some(side) => side,
            None => self.asked.target.stream().device().stream()?,
        };
        Ok(self.side.insert(side).clone())
    }
}

/// Uploads an item.
fn upload<R: ElementRule, T: Adapt<Upload<R>>>(
    item: &T,
    target: &Target,
    asked: &Asked,
) -> Result<T::Output, Error> {
    Upload::<R>::new(target, asked.at).run(item)
}

impl<R: ElementRule, I: Iterator<Item: Adapt<Upload<R>>>> Iterator for Batches<I, R> {
    type Item = Result<<I::Item as Adapt<Upload<R>>>::Output, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        // The first batch is returned as soon as it is uploaded.
        if self.current.is_some() {
            self.fill();
        }
        if self.current.take().is_some() && self.most > 0 {
            self.asked.turn_ended();
        }
        let uploaded = match self.ahead.pop_front() {
            Some(uploaded) => uploaded,
            None => {
                let item = self.item()?;
                self.asked.upload(None, |target| upload::<R, _>(&item, target, &self.asked))
            }
        };
        let begun = uploaded.and_then(|batch| batch.begin(&self.asked, self.most > 0));
        Some(begun.map(|(value, turn)| {
            self.current = Some(turn);
            value
        }))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let known = self.ahead.len() + usize::from(self.parked.is_some());
        let (least, most) = if self.is_over { (0, Some(0)) } else { self.items.size_hint() };
        (least.saturating_add(known), most.and_then(|most| most.checked_add(known)))
    }
}

impl<R: ElementRule, I> ExactSizeIterator for Batches<I, R> where
    I: ExactSizeIterator<Item: Adapt<Upload<R>>>
{
}

impl<R: ElementRule, I: Iterator<Item: Adapt<Upload<R>>>> FusedIterator for Batches<I, R> {}

impl<R, I: Iterator<Item: Adapt<Upload<R>>>> fmt::Debug for Batches<I, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (file, line) = (self.asked.at.file(), self.asked.at.line());
        write!(f, "batches asked for at {file}:{line}, {} ahead", self.ahead.len())
    }
}
