//! The turn of a batch. It begins when the program receives the batch, and ends when the batch's
//! memory is freed.

use std::sync::Arc;

use crate::Caller;
use crate::array::scope::Scope;
use crate::array::storage::Storage;
use crate::array::target::Target;
use crate::error::Error;
use crate::heap::retry::RunsOut;
use crate::stream::Stream;

/// Target of the batches, and the line of the program that requested them.
#[derive(Clone, Debug)]
pub struct Request {
    pub(super) target: Target,
    pub(super) at: Caller,
}

/// Memory uploaded for one batch. Dropping a `Turn` ends the batch's turn: the memory is freed in
/// stream order. Arrays that existed before the upload, or were made after it, are untouched.
pub(super) struct Turn {
    scope: Scope,
    /// Storages of the batch, kept until its turn ends even if the program drops the batch. A loop
    /// drops a batch just before the next upload. Without the kept storages, that upload would
    /// reuse the memory, and wait for the very work that it has to overlap with.
    held: Vec<Arc<Storage>>,
}

/// A batch that was uploaded and that the program has not received yet.
pub struct Batch<V> {
    value: V,
    turn: Turn,
    /// Second stream on which the batch was uploaded, and the event at the end of the upload;
    /// `None` if it was uploaded on the target's stream.
    side: Option<(Stream, crate::Event)>,
}

impl Request {
    /// Uploads a batch with `work`, on the target's stream or on a second stream.
    pub(super) fn upload<V>(
        &self,
        side: Option<&Stream>,
        work: impl FnOnce(&Target) -> Result<V, Error>,
    ) -> Result<Batch<V>, Error> {
        let Request { target, at } = self;
        let outer = target.scope();
        let scope = Scope::for_batch(target.heap(), at, outer.clone());
        if let Some(outer) = outer {
            outer.adopt(scope.state())?;
        }
        let turn = Turn { scope, held: Vec::new() };
        let stream = side.unwrap_or(target.stream());
        let value = work(&target.on(stream).within(Some(turn.scope.state().clone())))?;
        turn.scope.state().close();
        let side = match side {
            Some(side) => {
                let members = turn.scope.state().members();
                // Marks the upload as ended, and records the event afterwards. If another thread
                // uses an array after the mark, the array's storage notes that use as later than
                // the upload. The event covers earlier uses on `side`.
                members.iter().for_each(|storage| storage.end_upload());
                Some((side.clone(), side.record()?))
            }
            None => None,
        };
        Ok(Batch { value, turn, side })
    }

    /// Records a fence after the memory of a batch was freed, so that the next upload on the second
    /// stream can reuse the memory. The upload then waits for the work on the freed batch, but not
    /// for the work on the batch that follows.
    pub(super) fn turn_ended(&self) {
        self.target.heap().fence(self.target.memory_kind());
    }
}

impl<V> Batch<V> {
    /// Hands the batch to the program, and moves the batch to the target's stream. The stream waits
    /// for the batch's upload and for later uses of its arrays, but not for uploads of later
    /// batches. The host does not wait. If `is_held`, the memory stays until the turn's end, even
    /// if the program drops the batch.
    pub(super) fn begin(self, request: &Request, is_held: bool) -> Result<(V, Turn), Error> {
        let Batch { value, mut turn, side } = self;
        turn.scope.state().check_batch()?;
        let members = turn.scope.state().members();
        if let Some((side, uploaded)) = side {
            let stream = request.target.stream();
            stream.wait(&uploaded)?;
            members.iter().try_for_each(|storage| storage.follow(&side, stream))?;
        }
        if is_held {
            turn.held = members;
        }
        Ok((value, turn))
    }
}

impl Turn {
    /// Returns the scope that frees the batch. [`Scope::keep`] moves arrays of the batch out of the
    /// scope.
    pub(super) fn scope(&self) -> &Scope {
        &self.scope
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // A destructor cannot return the error, so the heap counts frees that failed.
        let _ = self.scope.state().end();
        self.held.clear();
    }
}

/// Returns `true` if memory ran out, so that a retry with more free memory may succeed.
pub(super) fn ran_out<V>(result: &Result<V, Error>) -> bool {
    result.as_ref().is_err_and(RunsOut::is_out_of_memory)
}
