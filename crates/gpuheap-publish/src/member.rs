//! Defines members: heaps and recorders of this process. They answer the questions of clients.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::protocol::{Access, HeapStatus, Held, Leaks, LibraryMemory, OpenScope, Recorded};

/// A heap or a recorder that publishes its memory. One worker thread calls all methods. A method
/// may wait for the program's locks.
pub trait Member: Send + Sync {
    /// Returns the member's heaps.
    fn heaps(&self) -> Vec<HeapStatus> {
        Vec::new()
    }

    /// Returns outstanding allocations by line of code; `None` if lines are not recorded.
    fn leaks(&self) -> Option<Leaks> {
        None
    }

    /// Returns outstanding allocations with their holders.
    fn held(&self) -> Vec<Held> {
        Vec::new()
    }

    /// Returns the scopes that have not ended.
    fn scopes(&self) -> Vec<OpenScope> {
        Vec::new()
    }

    /// Returns the memory of libraries. If two heaps of a process report a library's own allocator,
    /// they return equal entries, and a client gets the entry once.
    fn libraries(&self) -> Vec<LibraryMemory> {
        Vec::new()
    }

    /// Gives cached memory back to the driver. Returns the number of bytes given back.
    ///
    /// # Errors
    ///
    /// Returns the reason if no memory could be given back.
    fn flush(&self) -> Result<u64, String> {
        Ok(0)
    }

    /// Sets the hard limit of this member's heaps on a device. Returns the bytes given back to the
    /// driver; `None` if the member has no heap there.
    ///
    /// # Errors
    ///
    /// Returns the reason if the limit could not be set.
    fn set_limit(&self, device: &str, bytes: Option<u64>) -> Result<Option<u64>, String> {
        let _ = (device, bytes);
        Ok(None)
    }

    /// Starts to record the allocations of this heap or recorder into `file`. If the file exists,
    /// chooses another name in the same folder. Returns `None` if it has no allocations to record.
    ///
    /// # Errors
    ///
    /// Returns the reason if the recording could not start.
    fn start_recording(&self, file: &Path) -> Result<Option<Recorded>, String> {
        let _ = file;
        Ok(None)
    }

    /// Ends the recording that `start_recording` started; `None` if no such recording is running.
    fn stop_recording(&self) -> Option<Recorded> {
        None
    }
}

/// The heaps and recorders of a process that publish their memory.
#[derive(Default)]
pub(crate) struct Members {
    list: Mutex<Vec<Entry>>,
    pub(crate) has_ended: AtomicBool,
}

struct Entry {
    number: u64,
    access: Access,
    member: Weak<dyn Member>,
}

impl Members {
    /// Returns the highest access that any heap or recorder allows to clients.
    pub(crate) fn access(&self) -> Access {
        self.lock().iter().map(|entry| entry.access).max().unwrap_or_default()
    }

    /// Returns the heaps and recorders that allow `access`, in the order in which they joined.
    pub(crate) fn with(&self, access: Access) -> Vec<Arc<dyn Member>> {
        let allowed = |entry: &&Entry| entry.access >= access;
        self.lock().iter().filter(allowed).filter_map(|entry| entry.member.upgrade()).collect()
    }

    /// Returns the heaps of all members, each with the access that clients have to it.
    pub(crate) fn heaps(&self) -> Vec<HeapStatus> {
        let entry = |entry: &Entry| Some((entry.access, entry.member.upgrade()?));
        // Copies the list and releases its lock first, because `Member::heaps` may wait for a lock
        // that the program holds.
        let members: Vec<_> = self.lock().iter().filter_map(entry).collect();
        let heaps = |(access, member): (Access, Arc<dyn Member>)| {
            member.heaps().into_iter().map(move |heap| HeapStatus { access, ..heap })
        };
        members.into_iter().flat_map(heaps).collect()
    }

    pub(crate) fn add(&self, number: u64, access: Access, member: Weak<dyn Member>) {
        self.lock().push(Entry { number, access, member });
    }

    /// Removes a member. Returns `true` if no member is left.
    pub(crate) fn remove(&self, number: u64) -> bool {
        let mut list = self.lock();
        list.retain(|entry| entry.number != number);
        list.is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
