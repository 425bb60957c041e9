//! Uploads of batches on a second thread.

use std::any::Any;
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use super::ahead::{Ahead, Uploaded, Uploads, upload};
use super::source::Source;
use super::turn::{Request, ran_out};
use crate::error::{Error, ErrorKind};
use crate::heap::Heap;
use crate::stream::Stream;

/// Uploader on a second thread, for [`Batches::prefetch_on`](crate::Batches::prefetch_on).
pub struct Feeder<'scope, S: Source> {
    desk: Arc<Desk<S::Batch>>,
    heap: Heap,
    /// Bounds of the number of batches left.
    hint: (usize, Option<usize>),
    is_over: bool,
    /// Ties the batches to the lifetime of the thread's scope. The end of that scope waits for the
    /// thread.
    scope: PhantomData<&'scope ()>,
}

/// State through which the thread hands over uploaded batches.
struct Desk<V> {
    state: Mutex<DeskState<V>>,
    changed: Condvar,
}

struct DeskState<V> {
    ready: VecDeque<Uploaded<V>>,
    /// `true` if the program waits for a batch and holds no other batch.
    is_awaited: bool,
    /// `true` if the program needs no more batches.
    is_closed: bool,
    /// Result of the thread, once the thread has ended. If the thread panicked, the panic's payload
    /// is passed on. The payload is never dropped, because its destructor may panic.
    end: Option<Result<(), ManuallyDrop<Box<dyn Any + Send>>>>,
}

impl<V> Desk<V> {
    fn lock(&self) -> MutexGuard<'_, DeskState<V>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, DeskState<V>>) -> MutexGuard<'a, DeskState<V>> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `is_time` returns `true`. Returns `false` if the program needs no more batches.
    fn wait_until(&self, is_time: impl Fn(&DeskState<V>) -> bool) -> bool {
        let mut state = self.lock();
        while !state.is_closed && !is_time(&state) {
            state = self.wait(state);
        }
        !state.is_closed
    }
}

impl<V> DeskState<V> {
    /// Returns `true` if no batch holds memory. The program then holds no batch and waits for one,
    /// and no uploaded batch is ready.
    fn is_alone(&self) -> bool {
        self.is_awaited && self.ready.is_empty()
    }
}

impl<'scope, S: Source> Feeder<'scope, S> {
    /// Starts a thread of `scope` that uploads up to `most` batches ahead.
    pub(super) fn start(
        scope: &'scope thread::Scope<'scope, '_>,
        mut ahead: Ahead<S>,
        request: &Request,
        most: usize,
    ) -> Result<Feeder<'scope, S>, Error>
    where
        S: Source<Batch: Send + 'scope> + Send + 'scope,
    {
        let side = ahead.side(request)?;
        let hint = ahead.size_hint();
        let Ahead { source, ready, .. } = ahead;
        let state = DeskState { ready, is_awaited: false, is_closed: false, end: None };
        let desk = Arc::new(Desk { state: Mutex::new(state), changed: Condvar::new() });
        let (heap, shared, request) =
            (request.target.heap().clone(), desk.clone(), request.clone());
        let work = move || {
            let fed = AssertUnwindSafe(|| feed(&shared, source, &request, &side, most));
            let end = catch_unwind(fed).map_err(ManuallyDrop::new);
            shared.lock().end = Some(end);
            shared.changed.notify_all();
        };
        thread::Builder::new().spawn_scoped(scope, work).map_err(|error| {
            ErrorKind::HostResources.error(format!(
                "no thread to upload batches ahead: {error}; use prefetch, which needs none"
            ))
        })?;
        Ok(Feeder { desk, heap, hint, is_over: false, scope: PhantomData })
    }
}

impl<S: Source> Uploads for Feeder<'_, S> {
    type Batch = S::Batch;

    /// Returns an error in a forked child. The uploading thread does not exist in the child, and
    /// may have held the lock that both threads share at the fork.
    fn prepare(&mut self, _: &Request, _: bool) -> Result<(), Error> {
        if self.is_over || !self.heap.is_forked() {
            return Ok(());
        }
        self.is_over = true;
        self.heap.check_alive()
    }

    /// Waits for the next uploaded batch.
    fn take(&mut self, _: &Request) -> Option<Uploaded<S::Batch>> {
        if self.is_over {
            return None;
        }
        let mut state = self.desk.lock();
        loop {
            if let Some(uploaded) = state.ready.pop_front() {
                state.is_awaited = false;
                drop(state);
                self.desk.changed.notify_all();
                let (least, most) = self.hint;
                self.hint = (least.saturating_sub(1), most.map(|most| most.saturating_sub(1)));
                return Some(uploaded);
            }
            if let Some(end) = state.end.take() {
                self.is_over = true;
                drop(state);
                return match end {
                    Ok(()) => None,
                    Err(panic) => resume_unwind(ManuallyDrop::into_inner(panic)),
                };
            }
            state.is_awaited = true;
            self.desk.changed.notify_all();
            state = self.desk.wait(state);
        }
    }

    fn is_ahead(&self) -> bool {
        true
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        if self.is_over { (0, Some(0)) } else { self.hint }
    }
}

impl<S: Source> Drop for Feeder<'_, S> {
    fn drop(&mut self) {
        // In a forked child the thread does not exist, and may have held the lock at the fork.
        if self.heap.is_forked() {
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

/// Uploads the batches of a source until the source ends or the program needs no more batches.
fn feed<S: Source>(
    desk: &Desk<S::Batch>,
    mut source: S,
    request: &Request,
    side: &Stream,
    mut most: usize,
) {
    while desk.wait_until(|state| state.ready.len() < most || state.is_alone())
        && let Some(piece) = source.next_piece()
    {
        let rows = source.rows(&piece);
        let mut uploaded = upload(&source, &piece, request, Some(side));
        if ran_out(&uploaded) {
            {
                let state = desk.lock();
                most = most.min(state.ready.len());
            }
            if !desk.wait_until(DeskState::is_alone) {
                return;
            }
            uploaded = upload(&source, &piece, request, Some(side));
        }
        let mut state = desk.lock();
        if state.is_closed {
            // The batch is freed after the lock is released.
            drop(state);
            return;
        }
        state.ready.push_back((rows, uploaded));
        drop(state);
        desk.changed.notify_all();
    }
}
