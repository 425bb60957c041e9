//! The turn of a batch: from its upload until what was made for it is freed.

use std::panic::Location;
use std::sync::Arc;

use crate::array::scope::Scope;
use crate::array::storage::Storage;
use crate::array::target::Target;
use crate::error::Error;
use crate::heap::retry::RunsOut;
use crate::stream::Stream;

/// Where batches go, and where in the program they were asked for.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) target: Target,
    pub(super) at: &'static Location<'static>,
}

/// What was uploaded for one batch. Its end, which is when this is dropped, frees that in stream
/// order, and no array that was there before or was made since.
pub(super) struct Turn {
    scope: Scope,
    /// Kept until then although the program drops it. A loop drops a batch just before the next
    /// upload, which would take that memory, and so wait for the work that it is to run beside.
    held: Vec<Arc<Storage>>,
}

/// A batch on the device whose turn has not come.
pub(super) struct Batch<V> {
    value: V,
    turn: Turn,
    /// The stream it was uploaded on, and the end of that, where it is not the target's.
    side: Option<(Stream, crate::Event)>,
}

impl Asked {
    /// Uploads a batch with `work`, on the target's own stream or on another one.
    pub(super) fn upload<V>(
        &self,
        side: Option<&Stream>,
        work: impl FnOnce(&Target) -> Result<V, Error>,
    ) -> Result<Batch<V>, Error> {
        let Asked { target, at } = self;
        let outer = target.scope();
        let scope = Scope::of_batch(target.heap(), at, outer.clone());
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
                // Before the mark: a use by another thread in between is behind it or is noted.
                members.iter().for_each(|storage| storage.end_upload());
                Some((side.clone(), side.record()?))
            }
            None => None,
        };
        Ok(Batch { value, turn, side })
    }

    /// What is to be seen to when a turn ended and the next upload is on another stream: it is to
    /// wait for what was just freed, and not for the work on the next batch.
    pub(super) fn turn_ended(&self) {
        self.target.heap().fence(self.target.memory_kind());
    }
}

impl<V> Batch<V> {
    /// Begins its turn: it is on the target's stream, which waits for its upload and for later uses
    /// of its arrays, and not for later uploads; the host does not wait. `is_held` until the turn's end, whatever the program drops.
    pub(super) fn begin(self, asked: &Asked, is_held: bool) -> Result<(V, Turn), Error> {
        let Batch { value, mut turn, side } = self;
        turn.scope.state().check_batch()?;
        let members = turn.scope.state().members();
        if let Some((side, uploaded)) = side {
            let stream = asked.target.stream();
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
    /// What frees it, to keep something from that.
    pub(super) fn scope(&self) -> &Scope {
        &self.scope
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // A destructor reports and carries on: the heap counts what failed.
        let _ = self.scope.state().end();
        self.held.clear();
    }
}

/// Returns `true` if memory ran out, so that the same may succeed when there is more.
pub(super) fn ran_out<V>(result: &Result<V, Error>) -> bool {
    result.as_ref().is_err_and(RunsOut::is_out_of_memory)
}
