//! What is outstanding, as the tracker of a heap knows it.

use crate::error::{Error, ErrorKind};
use crate::heap::Heap;
use crate::track::{Leaks, Outstanding, Snapshot, ThreadEnd, Tracking};

impl Heap {
    /// How much is remembered of each outstanding allocation.
    pub fn tracking(&self) -> Tracking {
        self.handle.tracker.tracking()
    }

    /// The outstanding allocations of all kinds by the line, or the stack, that made them, most
    /// bytes first. At a time when all should be freed, these are leaks.
    ///
    /// # Errors
    ///
    /// Tracking is off, so nothing is known of them.
    pub fn leaks(&self) -> Result<Leaks, Error> {
        self.tracked()?;
        Ok(self.handle.tracker.leaks())
    }

    /// Every outstanding allocation by itself, oldest first.
    ///
    /// # Errors
    ///
    /// As [`leaks`](Heap::leaks).
    pub fn outstanding(&self) -> Result<Vec<Outstanding>, Error> {
        self.tracked()?;
        Ok(self.handle.tracker.outstanding())
    }

    /// What is outstanding at this moment, by site, to be compared with a later one by
    /// [`diff`](Snapshot::diff).
    ///
    /// # Errors
    ///
    /// As [`leaks`](Heap::leaks).
    pub fn snapshot(&self) -> Result<Snapshot, Error> {
        self.tracked()?;
        Ok(self.handle.tracker.snapshot())
    }

    /// Has `handler` told, on the ending thread, what each thread left behind at its end. Without
    /// one it is written to stderr. Not for the main thread, whose end is the program's: there ask
    /// for the [`leaks`](Heap::leaks).
    ///
    /// The handler may allocate and free. If it panics, the panic and the report go to stderr, and the
    /// thread ends as it would have.
    ///
    /// The heap holds the handler, so one that holds the heap keeps it alive for good.
    pub fn on_thread_end(&self, handler: impl Fn(&ThreadEnd) + Send + Sync + 'static) {
        // In a forked child no thread of the parent's is left to end.
        if !self.is_forked() {
            self.handle.tracker.set_on_thread_end(handler);
        }
    }

    fn tracked(&self) -> Result<(), Error> {
        // Before the tracker's lock, which a thread of a forked child's parent may have held.
        self.handle.context.check_alive()?;
        if self.tracking() != Tracking::Off {
            return Ok(());
        }
        Err(ErrorKind::NotTracked.error(
            "allocations are not tracked; build the heap with HeapBuilder::track, or set \
             GPUHEAP_TRACK to counts or backtraces"
                .to_owned(),
        ))
    }
}
