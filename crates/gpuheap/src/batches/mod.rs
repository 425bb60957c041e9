//! Data larger than the device: uploaded a batch at a time, and freed as it goes.

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
    /// The items of an iterator [adapted](Target::adapt) one after the other: each is uploaded when
    /// its turn comes, and freed when the next one's comes.
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
    /// The same on the device's own heap and that heap's own stream.
    ///
    /// # Errors
    ///
    /// As [`Device::heap`] and [`Heap::target`](crate::Heap::target).
    #[track_caller]
    pub fn batches<I>(&self, items: I) -> Result<Batches<I::IntoIter>, Error>
    where
        I: IntoIterator<Item: Adapt<Upload>>,
    {
        let asked = Asked { target: self.heap()?.target()?, at: Location::caller() };
        Ok(Batches::new(asked, items.into_iter()))
    }
}

/// What becomes of an iterator's items on a device. From [`Target::batches`].
///
/// An iterator of results: a batch that could not be uploaded is an error, and the next call goes on
/// with the next one.
///
/// # What is freed
///
/// The next call of `next`, and dropping this, free what was uploaded for a batch, in stream order
/// and without waiting, whoever has a handle to it: its later use is an error that says so. Not freed
/// are arrays of the device's that were in the items already (a
/// [`SharedArray`](crate::SharedArray) that adapting leaves where it is), and what the program made
/// of a batch, unless it has the batch's own memory: an operator that uses the batch up, as
/// `batch * 2.0` does, gives it on.
///
/// The end of the [scope](crate::Scope) that a batch was uploaded in frees it too, whether its turn
/// came or not, also if these batches were forgotten. A batch that was ahead is an error then.
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
/// Uploading and computing take turns unless batches are uploaded ahead:
///
/// | | for a loop that | uploads |
/// |---|---|---|
/// | [`prefetch`](Batches::prefetch) | enqueues work and does not wait for it | in `next`, beside that work |
/// | [`prefetch_on`](Batches::prefetch_on) | waits for results, such as by `to_vec` | on a thread of its own |
///
/// Either way a batch that is handed out is on the target's stream, so the order of work on it is as
/// without, and at most the current batch and those ahead have memory. The current one has it until
/// its turn ends, also where the program drops it before.
///
/// # Element types
///
/// They stay; [`cu`](Batches::cu) and [`narrow`](Batches::narrow) change them as
/// [`Target::cu`] and [`Target::narrow`] do.
#[must_use = "batches are uploaded when they are iterated over"]
pub struct Batches<I, R = Same>
where
    I: Iterator<Item: Adapt<Upload<R>>>,
{
    asked: Asked,
    items: I,
    /// `true` if the items came to their end.
    is_over: bool,
    /// An item that there was no memory for ahead of its turn.
    parked: Option<I::Item>,
    /// What was uploaded ahead.
    ahead: VecDeque<Uploaded<I::Item, R>>,
    /// How many may be ahead.
    most: usize,
    /// What they are uploaded on.
    side: Option<Stream>,
    current: Option<Turn>,
    rule: PhantomData<fn() -> R>,
}

/// What an upload of an item came to.
type Uploaded<T, R> = Result<Batch<<T as Adapt<Upload<R>>>::Output>, Error>;

impl<I: Iterator<Item: Adapt<Upload>>> Batches<I> {
    fn new(asked: Asked, items: I) -> Batches<I> {
        Batches::with_rule(asked, items, 0)
    }

    /// The same with numbers as `f32`, by the rules of [`Target::cu`]. To be said before the first
    /// batch: those that were uploaded ahead by then are freed and not uploaded again.
    pub fn cu(self) -> Batches<I, Cu>
    where
        I::Item: Adapt<Upload<Cu>>,
    {
        self.ruled()
    }

    /// The same with floats of 64 bits as such of 32, by the rules of [`Target::narrow`]. To be said
    /// before the first batch, as [`cu`](Batches::cu).
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

    /// Uploads up to `count` batches ahead, on a stream beside the target's: in `next`, before the
    /// turn of the current batch ends, so that the device's work on that one goes on meanwhile. One
    /// is enough where batches and the work on them are alike; more even out what is not.
    ///
    /// Where there is no memory for so many, fewer are ahead from then on. Several that are said one
    /// after the other count by the last.
    pub fn prefetch(self, count: usize) -> Batches<I, R> {
        Batches { most: count, ..self }
    }

    /// Moves an array of the current batch, or one that was made of its memory, out of its turn, as
    /// [`Scope::keep`](crate::Scope::keep) does of a scope. What is not of the current batch is left
    /// as it is.
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

    /// Uploads ahead, beside the device's work on the current batch.
    fn fill(&mut self) {
        while self.ahead.len() < self.most {
            // Each item is uploaded at its turn where there is no stream beside.
            let Ok(side) = self.side() else { return self.most = self.ahead.len() };
            let Some(item) = self.item() else { return };
            let upload = |target: &Target| upload::<R, _>(&item, target, &self.asked);
            let uploaded = self.asked.upload(Some(&side), upload);
            if ran_out(&uploaded) {
                // There may be enough at its turn. To try as much again at every turn would take
                // the time that this is to save.
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
        // The first is to be had as soon as it is there.
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
