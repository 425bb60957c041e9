//! Sources of batches: the items of an iterator, or the [rows](super::rows) of an array.

use std::iter::Fuse;
use std::marker::PhantomData;
use std::ops::Range;

use crate::Caller;
use crate::adapt::{Adapt, ElementRule, Same, Upload};
use crate::array::target::Target;
use crate::error::Error;

/// Source of [`Batches`](crate::Batches): [`Items`] or [`Rows`](crate::Rows).
pub trait Source {
    /// Host data of one batch.
    #[doc(hidden)]
    type Piece;
    /// The batch on the device.
    type Batch;

    #[doc(hidden)]
    fn next_piece(&mut self) -> Option<Self::Piece>;

    /// Takes back the last piece, to return it again as the next piece.
    #[doc(hidden)]
    fn put_back(&mut self, piece: Self::Piece);

    /// Takes back the last piece, because it did not fit in memory at its turn, and continues with
    /// smaller pieces. If the piece cannot be split, returns the error for the program.
    #[doc(hidden)]
    fn split(&mut self, piece: Self::Piece, error: Error) -> Option<Error> {
        drop(piece);
        Some(error)
    }

    /// Chooses the size of pieces for `count` batches that are on the device at the same time.
    #[doc(hidden)]
    fn plan(&mut self, count: usize) {
        let _ = count;
    }

    #[doc(hidden)]
    fn upload(
        &self,
        piece: &Self::Piece,
        target: &Target,
        at: Caller,
    ) -> Result<Self::Batch, Error>;

    /// Returns the rows of a piece; empty if the source has no rows.
    #[doc(hidden)]
    fn rows(&self, piece: &Self::Piece) -> Range<usize> {
        let _ = piece;
        0..0
    }

    #[doc(hidden)]
    fn size_hint(&self) -> (usize, Option<usize>);
}

/// Items of an iterator, for [`Target::batches`]. Each item is moved to the device by `Adapt`, and
/// `R` converts the element types of the item's arrays.
pub struct Items<I: Iterator, R = Same> {
    items: Fuse<I>,
    /// Item that was put back, if any.
    parked: Option<I::Item>,
    rule: PhantomData<fn() -> R>,
}

impl<I: Iterator> Items<I> {
    pub(super) fn new(items: I) -> Items<I> {
        Items { items: items.fuse(), parked: None, rule: PhantomData }
    }

    /// Returns the same items with another conversion.
    pub(super) fn with_rule<R>(self) -> Items<I, R> {
        Items { items: self.items, parked: self.parked, rule: PhantomData }
    }
}

impl<R: ElementRule, I: Iterator<Item: Adapt<Upload<R>>>> Source for Items<I, R> {
    type Piece = I::Item;
    type Batch = <I::Item as Adapt<Upload<R>>>::Output;

    fn next_piece(&mut self) -> Option<I::Item> {
        self.parked.take().or_else(|| self.items.next())
    }

    fn put_back(&mut self, item: I::Item) {
        self.parked = Some(item);
    }

    fn upload(&self, item: &I::Item, target: &Target, at: Caller) -> Result<Self::Batch, Error> {
        Upload::<R>::new(target, at).run(item)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let parked = usize::from(self.parked.is_some());
        let (least, most) = self.items.size_hint();
        (least.saturating_add(parked), most.and_then(|most| most.checked_add(parked)))
    }
}
