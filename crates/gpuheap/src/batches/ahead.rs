//! Uploads batches on the program's own thread, when the program requests them or earlier.

use std::collections::VecDeque;
use std::ops::Range;

use super::source::Source;
use super::turn::{Batch, Request, ran_out};
use crate::error::Error;
use crate::heap::retry::RunsOut;
use crate::stream::Stream;

/// Rows of a batch, with the uploaded batch or the error of its upload.
pub(super) type Uploaded<V> = (Range<usize>, Result<Batch<V>, Error>);

/// Uploader of [`Batches`](crate::Batches). [`Ahead`] runs on the program's own thread. The other
/// uploader runs on a second thread.
pub trait Uploads {
    /// The batch on the device.
    type Batch;

    /// Prepares for the end of the current batch, just before the batch's memory is freed.
    /// `is_current` is `false` if the program has no batch, as before the first one.
    #[doc(hidden)]
    fn prepare(&mut self, request: &Request, is_current: bool) -> Result<(), Error>;

    /// Returns the next batch.
    #[doc(hidden)]
    fn take(&mut self, request: &Request) -> Option<Uploaded<Self::Batch>>;

    /// Returns `true` if batches are uploaded before the program requests them.
    #[doc(hidden)]
    fn is_ahead(&self) -> bool;

    #[doc(hidden)]
    fn size_hint(&self) -> (usize, Option<usize>);
}

/// Uploader that runs within [`next`](Iterator::next). Uploads the batch that `next` returns or,
/// ahead of the requests, later batches.
pub struct Ahead<S: Source> {
    pub(super) source: S,
    pub(super) ready: VecDeque<Uploaded<S::Batch>>,
    /// Maximum number of batches that may be uploaded ahead.
    pub(super) most: usize,
    /// Second stream, on which batches are uploaded ahead.
    side: Option<Stream>,
}

impl<S: Source> Ahead<S> {
    pub(super) fn new(source: S, most: usize) -> Ahead<S> {
        Ahead { source, ready: VecDeque::new(), most, side: None }
    }

    /// Uploads batches ahead, while the device works on the current batch.
    fn fill(&mut self, request: &Request) {
        while self.ready.len() < self.most {
            // Without a second stream, each batch is uploaded when the program requests it.
            let Ok(side) = self.side(request) else { return self.most = self.ready.len() };
            let Some(piece) = self.source.next_piece() else { return };
            let rows = self.source.rows(&piece);
            let uploaded = upload(&self.source, &piece, request, Some(&side));
            if ran_out(&uploaded) {
                // Uploads fewer batches ahead from now on. If each step had a failing upload, it
                // would cost the time that prefetching saves.
                self.most = self.ready.len();
                return self.source.put_back(piece);
            }
            self.ready.push_back((rows, uploaded));
        }
    }

    pub(super) fn side(&mut self, request: &Request) -> Result<Stream, Error> {
        let side = match self.side.take() {
            Some(side) => side,
            None => request.target.stream().device().stream()?,
        };
        Ok(self.side.insert(side).clone())
    }
}

impl<S: Source> Uploads for Ahead<S> {
    type Batch = S::Batch;

    fn prepare(&mut self, request: &Request, is_current: bool) -> Result<(), Error> {
        // Before the first batch nothing is uploaded ahead, so that the first batch is returned as
        // soon as possible.
        if is_current {
            self.fill(request);
        }
        Ok(())
    }

    fn take(&mut self, request: &Request) -> Option<Uploaded<S::Batch>> {
        if let Some(ready) = self.ready.pop_front() {
            return Some(ready);
        }
        loop {
            let piece = self.source.next_piece()?;
            let rows = self.source.rows(&piece);
            match upload(&self.source, &piece, request, None) {
                Err(error) if error.is_out_of_memory() => {
                    let Some(error) = self.source.split(piece, error) else { continue };
                    return Some((rows, Err(error)));
                }
                uploaded => return Some((rows, uploaded)),
            }
        }
    }

    fn is_ahead(&self) -> bool {
        self.most > 0
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let (known, (least, most)) = (self.ready.len(), self.source.size_hint());
        (least.saturating_add(known), most.and_then(|most| most.checked_add(known)))
    }
}

/// Uploads a piece, on the target's stream or on a second stream.
pub(super) fn upload<S: Source>(
    source: &S,
    piece: &S::Piece,
    request: &Request,
    side: Option<&Stream>,
) -> Result<Batch<S::Batch>, Error> {
    request.upload(side, |target| source.upload(piece, target, request.at))
}
