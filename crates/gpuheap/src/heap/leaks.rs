//! Reports the outstanding allocations of a heap.

use crate::error::{Error, ErrorKind};
use crate::heap::Heap;
use crate::track::{Leaks, Outstanding, Snapshot, ThreadEnd, Tracking};

impl Heap {
    /// Returns the level of detail recorded for each outstanding allocation.
    pub fn tracking(&self) -> Tracking {
        self.inner().tracker.tracking()
    }

    /// Returns the outstanding allocations of all kinds, grouped by the line or stack that made
    /// them, most bytes first. If all memory should be free at this point, these allocations are
    /// leaks.
    ///
    /// # Errors
    ///
    /// Tracking is off, so allocations are not recorded.
    pub fn leaks(&self) -> Result<Leaks, Error> {
        self.tracked()?;
        Ok(self.inner().tracker.leaks())
    }

    /// Returns every outstanding allocation, oldest first.
    ///
    /// # Errors
    ///
    /// The errors of [`leaks`](Heap::leaks).
    pub fn outstanding(&self) -> Result<Vec<Outstanding>, Error> {
        self.tracked()?;
        Ok(self.inner().tracker.outstanding())
    }

    /// Returns the current outstanding allocations, grouped by site, for the C interface. In Rust,
    /// use [`meter`](Heap::meter) to compare two moments.
    ///
    /// # Errors
    ///
    /// The errors of [`leaks`](Heap::leaks).
    #[doc(hidden)]
    pub fn snapshot(&self) -> Result<Snapshot, Error> {
        self.tracked()?;
        Ok(self.inner().tracker.snapshot())
    }

    /// Sets a handler for threads that end with outstanding allocations. The handler is called on
    /// the ending thread. Without a handler, the report is written to stderr. The main thread is
    /// excluded, because its end is the end of the program: use [`leaks`](Heap::leaks) there.
    ///
    /// The handler may allocate and free. If the handler panics, the panic and the report go to
    /// stderr, and the thread ends normally.
    ///
    /// The heap owns the handler, so a handler that owns the heap keeps the heap alive forever.
    pub fn on_thread_end(&self, handler: impl Fn(&ThreadEnd) + Send + Sync + 'static) {
        // In a forked child, none of the parent's other threads exist.
        if !self.is_forked() {
            self.inner().tracker.set_on_thread_end(handler);
        }
    }

    fn tracked(&self) -> Result<(), Error> {
        // This check comes before the tracker's lock: in a forked child, a thread of the parent may
        // have held that lock.
        self.inner().context.check_alive()?;
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
