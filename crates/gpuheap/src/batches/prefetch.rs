//! Batches that a second thread uploads.

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::iter::FusedIterator;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use super::turn::{Asked, Batch, Turn, ran_out};
use super::{Batches, Uploaded, upload};
use crate::adapt::{Adapt, ElementRule, Same, Upload};
use crate::array::scope::Handle;
use crate::error::{Error, ErrorKind};
use crate::stream::Stream;

impl<R: ElementRule, I: Iterator<Item: Adapt<Upload<R>>>> Batches<I, R> {
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
    /// The thread ends with the items. If the batches are dropped, it ends after its current
    /// upload. If they are forgotten instead, it waits forever, and so does the end of `scope`. If
    /// the items' iterator panics, `next` panics once all earlier batches were handed out. If
    /// memory runs out for `count` batches, fewer are uploaded ahead from then on.
    ///
    /// Its arrays belong to the calling thread's [current scope](crate::Heap::thread_scope), if
    /// any. When that scope ends, later batches are errors.
    ///
    /// # Errors
    ///
    /// The stream or the thread cannot be created. The items are then dropped.
    pub fn prefetch_on<'scope>(
        mut self,
        scope: &'scope thread::Scope<'scope, '_>,
        count: usize,
    ) -> Result<FedBatches<'scope, I, R>, Error>
    where
        I: Send + 'scope,
        I::Item: Adapt<Upload<R>, Output: Send + 'scope> + Send,
    {
        let side = self.side()?;
        let hint = self.size_hint();
        let Batches { mut asked, items, is_over, parked, ahead, current, .. } = self;
        // The new thread has none of the calling thread's scopes.
        let within = asked.target.scope();
        asked.target = asked.target.within(within);
        let state = State { ready: ahead, asks: false, is_closed: false, end: None };
        let desk = Arc::new(Desk { state: Mutex::new(state), changed: Condvar::new() });
        let items = parked.into_iter().chain(items.take(if is_over { 0 } else { usize::MAX }));
        let feeder = Feeder { desk: desk.clone(), asked: asked.clone(), side, most: count };
        let work = move || feeder.run(items);
        thread::Builder::new().spawn_scoped(scope, work).map_err(|error| {
            ErrorKind::HostResources.error(format!(
                "no thread to upload batches ahead: {error}; use prefetch, which needs none"
            ))
        })?;
        Ok(FedBatches { asked, desk, hint, is_over: false, current, scope: PhantomData })
    }
}

/// Batches that a thread uploads ahead, otherwise as [`Batches`]. From [`Batches::prefetch_on`].
pub struct FedBatches<'scope, I, R = Same>
where
    I: Iterator<Item: Adapt<Upload<R>>>,
{
    asked: Asked,
    desk: Arc<Desk<I::Item, R>>,
    /// Bounds of the number of batches left.
    hint: (usize, Option<usize>),
    is_over: bool,
    current: Option<Turn>,
    scope: PhantomData<&'scope ()>,
}

/// The place through which the thread hands over its uploads.
struct Desk<T: Adapt<Upload<R>>, R> {
    state: Mutex<State<T, R>>,
    changed: Condvar,
}

struct State<T: Adapt<Upload<R>>, R> {
    ready: VecDeque<Uploaded<T, R>>,
    /// `true` if the program has no batch and waits for one.
    asks: bool,
    /// `true` if no more batches are wanted.
    is_closed: bool,
    /// How the thread ended, if it has.
    end: Option<End>,
}

enum End {
    Over,
    /// The panic's payload. Its type's destructor may panic, so it is passed on or never dropped.
    Panicked(ManuallyDrop<Box<dyn Any + Send>>),
}

impl<T: Adapt<Upload<R>>, R> Desk<T, R> {
    fn lock(&self) -> MutexGuard<'_, State<T, R>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State<T, R>>) -> MutexGuard<'a, State<T, R>> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `is_time`; returns `false` if no more batches are wanted.
    fn wait_until(&self, is_time: impl Fn(&State<T, R>) -> bool) -> bool {
        let mut state = self.lock();
        while !state.is_closed && !is_time(&state) {
            state = self.wait(state);
        }
        !state.is_closed
    }
}

impl<T: Adapt<Upload<R>>, R> State<T, R> {
    /// Returns `true` if only the batch that is to be uploaded would hold memory.
    fn is_alone(&self) -> bool {
        self.asks && self.ready.is_empty()
    }
}

/// State of the uploading thread.
struct Feeder<T: Adapt<Upload<R>>, R> {
    desk: Arc<Desk<T, R>>,
    asked: Asked,
    side: Stream,
    most: usize,
}

impl<R: ElementRule, T: Adapt<Upload<R>>> Feeder<T, R> {
    fn run(mut self, mut items: impl Iterator<Item = T>) {
        let fed = catch_unwind(AssertUnwindSafe(|| self.feed(&mut items)));
        let end = match fed {
            Ok(()) => End::Over,
            Err(panic) => End::Panicked(ManuallyDrop::new(panic)),
        };
        self.desk.lock().end = Some(end);
        self.desk.changed.notify_all();
    }

    fn feed(&mut self, items: &mut impl Iterator<Item = T>) {
        let desk = self.desk.clone();
        while desk.wait_until(|state| state.ready.len() < self.most || state.is_alone())
            && let Some(item) = items.next()
        {
            let mut uploaded = self.upload(&item);
            if ran_out(&uploaded) {
                {
                    let state = desk.lock();
                    self.most = self.most.min(state.ready.len());
                }
                if !desk.wait_until(State::is_alone) {
                    return;
                }
                uploaded = self.upload(&item);
            }
            let mut state = desk.lock();
            if state.is_closed {
                // Freed after the lock is released.
                drop(state);
                return;
            }
            state.ready.push_back(uploaded);
            drop(state);
            desk.changed.notify_all();
        }
    }

    fn upload(&self, item: &T) -> Result<Batch<T::Output>, Error> {
        let Feeder { asked, side, .. } = self;
        asked.upload(Some(side), |target| upload::<R, _>(item, target, asked))
    }
}

impl<R: ElementRule, I: Iterator<Item: Adapt<Upload<R>>>> FedBatches<'_, I, R> {
    /// Keeps an array beyond the batch's turn, as [`Batches::keep`] does.
    pub fn keep<A: Handle>(&self, array: A) -> A {
        match &self.current {
            Some(turn) => turn.scope().keep(array),
            None => array,
        }
    }

    /// Waits for the next uploaded batch.
    fn take(&mut self) -> Option<Uploaded<I::Item, R>> {
        let mut state = self.desk.lock();
        loop {
            if let Some(uploaded) = state.ready.pop_front() {
                state.asks = false;
                drop(state);
                self.desk.changed.notify_all();
                return Some(uploaded);
            }
            if let Some(end) = state.end.take() {
                self.is_over = true;
                drop(state);
                match end {
                    End::Over => return None,
                    End::Panicked(panic) => resume_unwind(ManuallyDrop::into_inner(panic)),
                }
            }
            state.asks = true;
            self.desk.changed.notify_all();
            state = self.desk.wait(state);
        }
    }
}

impl<R: ElementRule, I: Iterator<Item: Adapt<Upload<R>>>> Iterator for FedBatches<'_, I, R> {
    type Item = Result<<I::Item as Adapt<Upload<R>>>::Output, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_over {
            return None;
        }
        // In a forked child the thread does not exist, and may have held the lock.
        if let Err(gone) = self.asked.target.stream().context().check_alive()
            && self.asked.target.heap().is_forked()
        {
            self.is_over = true;
            return Some(Err(gone.into()));
        }
        if self.current.take().is_some() {
            self.asked.turn_ended();
        }
        let uploaded = self.take()?;
        let (least, most) = self.hint;
        self.hint = (least.saturating_sub(1), most.map(|most| most.saturating_sub(1)));
        let begun = uploaded.and_then(|batch| batch.begin(&self.asked, true));
        Some(begun.map(|(value, turn)| {
            self.current = Some(turn);
            value
        }))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        if self.is_over { (0, Some(0)) } else { self.hint }
    }
}

impl<R: ElementRule, I> ExactSizeIterator for FedBatches<'_, I, R> where
    I: ExactSizeIterator<Item: Adapt<Upload<R>>>
{
}

impl<R: ElementRule, I: Iterator<Item: Adapt<Upload<R>>>> FusedIterator for FedBatches<'_, I, R> {}

impl<I: Iterator<Item: Adapt<Upload<R>>>, R> Drop for FedBatches<'_, I, R> {
    fn drop(&mut self) {
        // In a forked child the thread does not exist, and may have held the lock.
        if self.asked.target.heap().is_forked() {
            return;
        }
        let ready = {
            let mut state = self.desk.lock();
            state.is_closed = true;
            std::mem::take(&mut state.ready)
        };
        self.desk.changed.notify_all();
        drop(ready);
    }
}

impl<I: Iterator<Item: Adapt<Upload<R>>>, R> fmt::Debug for FedBatches<'_, I, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (file, line) = (self.asked.at.file(), self.asked.at.line());
        write!(f, "batches asked for at {file}:{line}, uploaded by a thread")
    }
}
