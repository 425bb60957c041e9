//! Stores the scopes of allocations and the streams added by `use_on`. Few allocations have either.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gpuheap::{Block, Device, Error, Stream};
use rustc_hash::FxHashMap;

use crate::scope::Scope;

/// Scopes and further streams of a heap's allocations, keyed by address. A free loads `count`, the
/// number of entries. While `count` is 0, the free does nothing more with the table.
#[derive(Default)]
pub(crate) struct SideTable {
    count: AtomicUsize,
    by_address: Mutex<FxHashMap<u64, SideEntry>>,
}

/// The scope and the streams of one allocation.
#[derive(Default)]
pub(crate) struct SideEntry {
    /// The open scope in which the allocation was made.
    pub(crate) scope: Option<Arc<Scope>>,
    /// Further streams. The free is ordered after their work.
    also_on: Vec<Stream>,
}

impl SideTable {
    /// Changes the entry of an allocation. No thread may free the allocation meanwhile.
    pub(crate) fn change(&self, address: u64, change: impl FnOnce(&mut SideEntry)) {
        let mut entries = self.lock();
        let before = entries.len();
        change(entries.entry(address).or_default());
        self.count.fetch_add(entries.len() - before, Ordering::Relaxed);
    }

    /// Returns `true` if the table has no entries. May miss an entry that another thread is adding,
    /// but the calling thread cannot free that allocation yet.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        // A thread that frees an allocation got the address after the allocation's entry was added,
        // so the thread reads a count that includes the entry.
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Removes the entry of an allocation that the calling thread is about to free. Removes the
    /// allocation from its scope too.
    #[inline]
    pub(crate) fn take(&self, address: u64) -> Option<SideEntry> {
        if self.is_empty() { None } else { self.take_listed(address) }
    }

    #[cold]
    fn take_listed(&self, address: u64) -> Option<SideEntry> {
        let entry = self.lock().remove(&address)?;
        self.count.fetch_sub(1, Ordering::Relaxed);
        if let Some(scope) = &entry.scope {
            scope.leave(address);
        }
        Some(entry)
    }

    fn lock(&self) -> MutexGuard<'_, FxHashMap<u64, SideEntry>> {
        self.by_address.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SideEntry {
    /// Orders the free after the work that is enqueued on `stream` until the free.
    pub(crate) fn use_on(&mut self, stream: &Stream) {
        let is_it = |known: &Stream| known.id() == stream.id() && !known.is_retired();
        if !self.also_on.iter().any(is_it) {
            self.also_on.push(stream.clone());
        }
    }

    /// Frees the block in the order of its own stream and of all streams that use it. Each stream
    /// waits for the previous stream, and the block is freed in the order of the last stream. If a
    /// stream ended, its handle is invalid, so the host waits for the device.
    pub(crate) fn free(self, block: Block, device: &Device) -> Result<(), Error> {
        match self.last_stream(device) {
            Ok(Some(last)) => block.free_on(last),
            Ok(None) => block.free(),
            Err(error) => {
                // A stream may still use the memory, so nothing may reuse it.
                std::mem::forget(block);
                Err(error)
            }
        }
    }

    /// Makes each live stream of `also_on` wait for the previous stream. Returns the last stream.
    fn last_stream(&self, device: &Device) -> Result<Option<&Stream>, Error> {
        if self.also_on.iter().any(Stream::is_retired) {
            device.synchronize()?;
        }
        let mut last: Option<&Stream> = None;
        for stream in self.also_on.iter().filter(|stream| !stream.is_retired()) {
            if let Some(before) = last {
                stream.wait(&before.record()?)?;
            }
            last = Some(stream);
        }
        Ok(last)
    }
}
